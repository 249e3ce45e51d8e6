"""Limits the operands in flight: more than the scheduler can handle only fill memory."""

from __future__ import annotations

from typing import Any

#: Seconds of processor time that the scheduler needs for an operand, measured for a trivial one.
SCHEDULER_TIME = 7e-4
#: Seconds from an operand's end to the next start on a busy cluster; on an idle one about 0.004.
ROUND_TRIP = 0.01
#: Operands in flight, as a multiple of those that keep the scheduler busy: operands return
#: unevenly, and only waiting messages form a batch.
SURPLUS = 4.0
#: An operand no longer counts after this many times the scheduler's time for all in flight.
_OVERDUE = 2.0
_SHARE = 0.05  #: Weight of the last operand in the mean duration.


class DispatchPace:
    """Limits the operands in flight to `SURPLUS` times those that keep the scheduler busy.

    An operand returns after the round trip of its messages and its duration; meanwhile the
    scheduler handles one in every `scheduler_time` seconds (Little's law). Until durations are
    known, the age of the oldest operand in flight stands for them.
    """

    def __init__(self, scheduler_time: float = SCHEDULER_TIME) -> None:
        self.scheduler_time = scheduler_time
        self._duration: float | None = None
        self._on_the_way: dict[Any, float] = {}

    def sent(self, operand: Any, now: float) -> None:
        """Record that an operand was sent to a worker, withheld before or not."""
        self._on_the_way[operand] = now

    def ended(self, operand: Any, duration: float | None) -> None:
        """Record that an operand has ended, and the mean duration of its kind in seconds."""
        if self._on_the_way.pop(operand, None) is None or duration is None:
            return
        if self._duration is None:
            self._duration = duration
        self._duration += _SHARE * (duration - self._duration)

    def forget(self, operand: Any) -> None:
        """Record that an operand will not return."""
        self._on_the_way.pop(operand, None)

    def most(self, now: float) -> float:
        """Return the most operands that may be in flight."""
        return SURPLUS * (ROUND_TRIP + self._expected(now)) / self.scheduler_time

    def room(self, now: float) -> float:
        """Return how many more operands may be sent."""
        most = self.most(now)
        long_ago = now - _OVERDUE * most * self.scheduler_time
        while self._on_the_way:
            first = next(iter(self._on_the_way))
            if self._on_the_way[first] > long_ago:
                break
            del self._on_the_way[first]
        return most - len(self._on_the_way)

    def _expected(self, now: float) -> float:
        if self._duration is not None:
            return self._duration
        first = next(iter(self._on_the_way.values()), now)
        return max(0.0, now - first - ROUND_TRIP)
