"""What an assignment policy returns: units of initial operands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """A worker as an assignment policy sees it.

    Parameters
    ----------
    address
        Address of the worker.
    nthreads
        Its number of threads.
    memory_limit
        Its memory in bytes, 0 where it has no limit.
    bound
        Number of initial operands of this graph that it has run or is bound to run already.
    host
        Name of its host.
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
        Numbers of the operands, ascending.
    worker
        Number of the worker planned for them, or None: whichever has a slot first.
    share
        Units of the same number belong on one host, whichever begins with them; None: on any.
    tile
        Its operands share what they read, which is still to be computed: a worker that has begun
        with it may fetch for the next ones while others run.
    """

    operands: tuple[int, ...]
    worker: int | None = None
    share: int | None = None
    tile: bool = False
