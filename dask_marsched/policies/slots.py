"""How many withheld operands a worker may have at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Seconds that a worker spends on an operand besides: 1.3 ms of its processor were measured for a
#: trivial one, about half of it in the way of the next one.
_BESIDES = 0.0007
#: Seconds below which operands are short: a thread would idle for a large part of its time from the
#: end of one to the message with the next. Longer ones may wait without much loss, and hold less.
_SHORT_TASK = 0.005
#: Seconds of work a thread that a worker may have in wait: the way to the scheduler and back.
_HORIZON = 0.010
#: Bytes of results a thread that those may produce: too little to matter in any worker's memory.
_HORIZON_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class SlotRule:
    """Whether a worker has a slot for one more withheld operand.

    A thread that is free takes one, unless the user's saturation leaves threads free. Where
    operands are shorter than `_SHORT_TASK`, one in ten threads has another in wait, as in stock
    Dask. Where they are so short that the way to the scheduler and back takes longer than they
    do, a worker may have more in wait: work for `_HORIZON` a thread, as long as their results
    stay below `_HORIZON_BYTES` a thread.

    Parameters
    ----------
    saturation
        Operands sent a thread where they are short (stock Dask's ``worker-saturation``).
    """

    saturation: float = 1.1

    def has_free_thread(self, nthreads: int, in_progress: int) -> bool:
        """Return whether a thread has nothing to do, of those that may have."""
        return in_progress < min(nthreads, max(1, math.ceil(self.saturation * nthreads)))

    def may_wait(self, nthreads: int, in_progress: int) -> bool:
        """Return whether a worker may have one in wait, if that holds nothing back.

        It does not where nothing becomes ready when those in progress are done: the next one
        would be the worker's next in any case.
        """
        return in_progress < math.ceil(self.saturation * nthreads)

    def may_fetch(self, nthreads: int, in_progress: int) -> bool:
        """Return whether a worker may have one more of its tile, to fetch its inputs meanwhile.

        One for each thread: matrix products on 16 workers took 2.6 s without, 2.1 with it in
        simulation, and 2.0 with two.
        """
        return self.saturation >= 1 and in_progress < 2 * nthreads

    def is_full(self, nthreads: int, in_progress: int, backlog: float) -> bool:
        """Return whether no operand is admitted, nor may wait, whatever it is."""
        if self.has_free_thread(nthreads, in_progress) or self.may_wait(nthreads, in_progress):
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
        """Return whether a worker may have one more.

        Parameters
        ----------
        nthreads
            The worker's threads.
        in_progress
            Operands that it has been sent and has not finished.
        duration
            Expected duration of the next one in seconds, None if unknown.
        backlog
            Seconds of work that it has been sent.
        nbytes
            Expected size of the next one's result.
        read
            Whether another operand reads it. Those that nobody reads stay in any case, so that the
            more may be sent ahead: the worker's own time for each is not counted.
        """
        if self.has_free_thread(nthreads, in_progress):
            return True
        if self.saturation < 1 or duration is None or duration >= _SHORT_TASK:
            return False
        if in_progress < math.ceil(self.saturation * nthreads):
            return True
        waiting = in_progress - nthreads + 1
        work = backlog + duration + (_BESIDES * (in_progress + 1) if read else 0.0)
        return work <= _HORIZON * nthreads and waiting * nbytes <= _HORIZON_BYTES * nthreads
