"""Defines what an assignment policy reads and returns: workers and units."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """A worker as an assignment policy sees it."""

    address: str
    nthreads: int
    memory_limit: int = 0  #: In bytes; 0 for none.
    bound: int = 0  #: Initial operands of this graph that it has run or is bound to run.
    host: str = ""


@dataclass(frozen=True, slots=True)
class Unit:
    """Initial operands that belong on one worker."""

    operands: tuple[int, ...]  #: Their numbers, ascending.
    worker: int | None = None  #: Number of the worker; None for the first with a free slot.
    share: int | None = None  #: Units of equal numbers belong on one host; None for any host.
    #: Whether operands read common inputs still to be computed, which may be fetched ahead.
    tile: bool = False
