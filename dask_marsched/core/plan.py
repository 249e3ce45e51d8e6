"""Defines what an assignment policy reads and returns: workers and units."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """A worker as an assignment policy sees it.

    Parameters
    ----------
    address, host
        Its address, and the name of its host.
    nthreads
        Its number of threads.
    memory_limit
        Its memory limit in bytes; 0 for none.
    bound
        Initial operands of this graph that it has run or is bound to run.
    """

    address: str
    nthreads: int
    memory_limit: int = 0
    bound: int = 0
    host: str = ""


@dataclass(frozen=True, slots=True)
class Unit:
    """Initial operands that belong on one worker.

    Parameters
    ----------
    operands
        Their numbers, ascending.
    worker
        Number of the worker planned for them; None for the first with a free slot.
    share
        Units with equal numbers belong on one host; None for any host.
    tile
        Whether the operands read common inputs that are still to be computed. A worker may then
        fetch inputs of the next operands while others run.
    """

    operands: tuple[int, ...]
    worker: int | None = None
    share: int | None = None
    tile: bool = False
