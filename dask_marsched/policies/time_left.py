"""Estimates the remaining time of a computation from the work left and the threads in use."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

_SETTLED = 2.0  #: Least seconds for a mean.
#: It is of the last minute: so many samples, so many seconds apart.
_SAMPLES, _EVERY = 60, 1.0


@dataclass(frozen=True, slots=True)
class Remaining:
    """The operands of one kind that are left."""

    left: int  #: Operands without a result, running ones included.
    mean: float | None  #: Mean duration in seconds, None if none has run.
    running: int = 0
    spent: float = 0.0  #: Seconds for which these have run, summed.

    @property
    def work(self) -> float:
        """Thread seconds left, 0 if the mean is unknown."""
        if self.mean is None:
            return 0.0
        # An operand that runs longer than the mean has still done only its own work.
        useful = min(self.spent, self.running * self.mean)
        return max(0.0, self.left * self.mean - useful)

    @property
    def longest(self) -> float:
        """Least seconds until the last of them ends, with any number of threads."""
        if not self.left or self.mean is None:
            return 0.0
        if self.running < self.left:
            return self.mean  # one of them has not begun
        return max(0.0, self.mean - self.spent / self.running)


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """An estimate of the seconds left, or the reason why it is unknown."""

    seconds: float | None
    at_least: bool = False  #: Whether it omits kinds of which none has run.
    reason: str | None = None


def time_left(kinds: Iterable[Remaining], threads: int, pace: float | None = None) -> TimeLeft:
    """Return the remaining work divided by the threads in use, at least the longest operand.

    Threads in use are bounded by the operands left and by `pace`, the mean number of busy threads
    so far, which reflects transfers, the shape of the graph and other computations.
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
    """Computes the mean number of busy threads in the last minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)

    def observe(self, now: float, work: float) -> None:
        """Record the thread seconds of work done until `now`, in seconds."""
        if not self._samples or now - self._samples[-1][0] >= _EVERY:
            self._samples.append((now, work))

    def mean(self, now: float, work: float) -> float | None:
        """Return the mean number of busy threads until `now`, None if it is too early."""
        if not self._samples:
            return None
        start, before = self._samples[0]
        if now - start < _SETTLED or work <= before:
            return None
        return (work - before) / (now - start)
