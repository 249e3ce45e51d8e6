"""How many withheld operands may be on the way at a time.

With many threads and short operands the scheduler is what all others wait for: it sends operands
and hears of their ends one after the other. More of them on the way than it takes to keep it busy
do not make anything faster. Their results lie in the memory of the workers until it comes to them.
"""

from __future__ import annotations

from typing import Any

#: Seconds that the scheduler takes for an operand, of its processor, as measured for a trivial one.
#: Beyond 1,400 operands a second it is what all wait for.
SCHEDULER_TIME = 7e-4
#: Seconds from the end of an operand to the start of the next one on the same thread, where neither
#: scheduler nor network are held up: messages leave in batches every 2 and 5 ms.
ROUND_TRIP = 0.01
#: How many times as many operands as keep the scheduler busy may be on the way. They do not come
#: back evenly, and messages to and from the same worker travel together only where some wait.
SURPLUS = 4.0
#: Operands that are on the way for so many times as long as the scheduler needs for all that may be
#: are not what it is about to hear of.
_OVERDUE = 2.0
#: Share of the last operand in the mean of their durations.
_SHARE = 0.05


class DispatchPace:
    """Bounds the withheld operands on the way by what keeps the scheduler busy.

    An operand that is sent comes back after the round trip of the messages and its duration;
    meanwhile the scheduler handles others, one in `scheduler_time`. So many keep it busy (Little's
    law), and `SURPLUS` times as many may be on the way. Where that is no less than the threads of
    the cluster nothing is bounded: the scheduler keeps up.

    Of operands whose duration is not known yet it is known how long they have been on the way.

    Parameters
    ----------
    scheduler_time
        Seconds that the scheduler needs for an operand; 0: nothing is bounded.
    """

    def __init__(self, scheduler_time: float = SCHEDULER_TIME) -> None:
        self.scheduler_time = scheduler_time
        self._duration: float | None = None
        self._on_the_way: dict[Any, float] = {}

    def sent(self, operand: Any, now: float) -> None:
        """Take note that a withheld operand was sent to a worker."""
        if self.scheduler_time:
            self._on_the_way[operand] = now

    def ended(self, operand: Any, duration: float | None) -> None:
        """Take note that an operand has ended; its kind takes so many seconds in the mean."""
        if self._on_the_way.pop(operand, None) is None or duration is None:
            return
        if self._duration is None:
            self._duration = duration
        self._duration += _SHARE * (duration - self._duration)

    def forget(self, operand: Any) -> None:
        """Take note that an operand will not come back."""
        self._on_the_way.pop(operand, None)

    def most(self, now: float) -> float:
        """Return how many withheld operands may be on the way; infinity for any number."""
        if not self.scheduler_time:
            return float("inf")
        return SURPLUS * (ROUND_TRIP + self._expected(now)) / self.scheduler_time

    def room(self, now: float) -> float:
        """Return how many more may be sent."""
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

    def clear(self) -> None:
        """Forget everything: the scheduler restarts."""
        self._on_the_way.clear()
        self._duration = None
