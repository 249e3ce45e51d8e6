"""How long a computation goes on: what is left of it, and how fast it has gone so far."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

#: Seconds before the pace so far counts.
_SETTLED = 2.0


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is left of the operands of one kind.

    Parameters
    ----------
    left
        Operands without a result, those that run among them.
    mean
        Mean seconds that one takes, None where none has run.
    running
        Operands that run.
    spent
        Seconds for which these have run together.
    """

    left: int
    mean: float | None
    running: int = 0
    spent: float = 0.0

    @property
    def work(self) -> float:
        """Seconds of one thread that are left, 0 where the mean is not known."""
        return max(0.0, self.left * self.mean - self._useful) if self.mean is not None else 0.0

    @property
    def longest(self) -> float:
        """Seconds that the last of them takes at least, however many threads there are."""
        if not self.left or self.mean is None:
            return 0.0
        if self.running < self.left:
            return self.mean  # one of them has not begun
        return max(0.0, self.mean - self.spent / self.running)

    @property
    def _useful(self) -> float:
        # One that takes longer than the others has not done the others' work.
        return min(self.spent, self.running * self.mean) if self.mean is not None else 0.0


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """An estimate.

    Attributes
    ----------
    seconds
        Seconds, None where it is not known.
    at_least
        Whether some kinds are not counted, because none of them has run.
    reason
        Why it is not known.
    """

    seconds: float | None
    at_least: bool = False
    reason: str | None = None


def time_left(kinds: Iterable[Remaining], threads: int, pace: float | None = None) -> TimeLeft:
    """Return how long a computation goes on.

    What is left, in seconds of a thread, by the threads that work on it. These are no more than
    there are operands left, and no more than have worked on it so far in the mean: transfers, the
    shape of the graph and others' computations count that way. It is no less than the longest of
    the operands.

    Parameters
    ----------
    kinds
        What is left.
    threads
        Threads of the workers.
    pace
        Threads that were at work so far in the mean, None where that cannot be told yet.
    """
    kinds = [kind for kind in kinds if kind.left > 0]
    if not kinds:
        return TimeLeft(0.0)
    if threads <= 0:
        return TimeLeft(None, reason="there are no workers")
    known = [kind for kind in kinds if kind.mean is not None]
    if not known:
        return TimeLeft(None, reason="no operand of these kinds has run yet")
    at_work = float(min(threads, sum(kind.left for kind in kinds)))
    if pace is not None and pace > 0:
        at_work = min(at_work, pace)
    seconds = max(sum(kind.work for kind in known) / at_work, max(kind.longest for kind in known))
    if not math.isfinite(seconds):
        return TimeLeft(None, reason="there is no pace")
    return TimeLeft(seconds, len(known) < len(kinds))


class BusyThreads:
    """How many threads have been at work in the mean, of the last minute or so.

    Parameters
    ----------
    most
        Looks that are remembered.
    every
        Least seconds between two of them.
    """

    def __init__(self, most: int = 60, every: float = 1.0) -> None:
        self._every = every
        self._samples: deque[tuple[float, float]] = deque(maxlen=most)

    def observe(self, now: float, work: float) -> None:
        """Take note of the work done so far, in seconds of a thread; `now` in seconds."""
        if not self._samples or now - self._samples[-1][0] >= self._every:
            self._samples.append((now, work))

    def mean(self, now: float, work: float) -> float | None:
        """Return the mean number of threads until now, None where it cannot be told yet."""
        if not self._samples:
            return None
        start, before = self._samples[0]
        if now - start < _SETTLED or work <= before:
            return None
        return (work - before) / (now - start)
