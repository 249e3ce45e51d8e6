"""Decides how many withheld operands a worker may have at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

_DASK_SATURATION = 1.1  #: Dask's default. A larger saturation is one that the user asks for.
#: Overhead of a worker for each operand in seconds: about half of the 1.3 ms of processor time
#: measured for a trivial one, as the rest overlaps with the next one.
_WORKER_OVERHEAD = 0.0007
#: Operands below this many seconds are short: threads would idle much while waiting for messages.
_SHORT_TASK = 0.005
#: The same for operands whose results nobody reads, or are small. Queuing one costs little memory,
#: while a thread that waits for its next message loses 2.5 ms.
_BRIEF_TASK = 0.05
_SMALL_RESULT = 4 * 2**20  #: Bytes up to which a result is small.
_HORIZON = 0.010  #: Seconds of queued work for each thread: the round trip to the scheduler.
_HORIZON_BYTES = 2**20  #: Bytes of queued results for each thread, small beside a worker's memory.


@dataclass(frozen=True, slots=True)
class SlotRule:
    """Decides whether a worker may be sent one more withheld operand.

    A free thread takes one, unless the saturation leaves threads free. Up to ``saturation``
    operands per thread may be sent if they are short, and any operand if the user raised the
    saturation above Dask's default. Very short ones may queue up to `_HORIZON` seconds of work and
    `_HORIZON_BYTES` of results for each thread.
    """

    #: Short operands for each thread (Dask's ``worker-saturation``).
    saturation: float = _DASK_SATURATION

    def has_free_slot(self, nthreads: int, in_progress: int) -> bool:
        """Return whether a worker takes another operand of any kind."""
        slots = max(1, math.ceil(self.saturation * nthreads))
        return in_progress < (slots if self.saturation > _DASK_SATURATION else min(nthreads, slots))

    def shares_out(self, nthreads: int, in_progress: int) -> bool:
        """Return whether a busy worker that Dask's `idle_task_count` lacks may get short operands.

        With a saturation of 1 only workers that have just finished an operand are in it: they would
        get all of them.
        """
        return self.shares_out_more and in_progress < math.ceil(_DASK_SATURATION * nthreads)

    @property
    def shares_out_more(self) -> bool:
        """Whether `shares_out` accepts any worker."""
        return 1 <= self.saturation < _DASK_SATURATION

    def may_wait(self, nthreads: int, in_progress: int) -> bool:
        """Return whether an operand may be queued if the ones in progress make no others ready."""
        return in_progress < math.ceil(self.saturation * nthreads)

    def may_fetch(self, nthreads: int, in_progress: int) -> bool:
        """Return whether a worker may be sent one more operand of its tile, to fetch inputs early.

        One for each thread: in simulation, matrix products took 2.6 s without it and 2.1 s with it.
        """
        return self.saturation >= 1 and in_progress < 2 * nthreads

    def is_full(self, nthreads: int, in_progress: int, backlog: float) -> bool:
        """Return whether `admits` and `may_wait` reject every operand."""
        if self.has_free_slot(nthreads, in_progress) or self.may_wait(nthreads, in_progress):
            return False
        return self.saturation < 1 or backlog > _HORIZON * nthreads

    def admits(
        self,
        nthreads: int,
        in_progress: int,
        duration: float | None,
        backlog: float,
        nbytes: float,
        read: bool = True,
    ) -> bool:
        """Return whether a worker with `backlog` seconds of work may be sent one more operand.

        The operand takes `duration` seconds and returns `nbytes`, which another operand may read.
        If none does (``read=False``), the worker's overhead is not counted.
        """
        if self.has_free_slot(nthreads, in_progress):
            return True
        if self.saturation < 1 or duration is None:
            return False
        if in_progress < math.ceil(self.saturation * nthreads):
            keeps_much = read and nbytes > _SMALL_RESULT
            return duration < (_SHORT_TASK if keeps_much else _BRIEF_TASK)
        if duration >= _SHORT_TASK:
            return False
        waiting = in_progress - nthreads + 1
        work = backlog + duration + (_WORKER_OVERHEAD * (in_progress + 1) if read else 0.0)
        return work <= _HORIZON * nthreads and waiting * nbytes <= _HORIZON_BYTES * nthreads
