"""Implements virtual time: a queue of events, and the clock that it advances."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

#: Virtual time at which every simulation starts, in seconds; some code takes 0 for "never".
EPOCH = 1_000_000.0


class EventQueue:
    """Events in order of virtual time, in seconds; those of equal time run in the order added."""

    def __init__(self) -> None:
        self.now = EPOCH
        self.essential = 0  #: Events that are no daemons. At 0, only timers would still tick.
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...], bool]] = []
        self._count = 0
        self._cancelled: set[int] = set()

    def at(
        self, time: float, action: Callable[..., object], *args: Any, daemon: bool = False
    ) -> int:
        """Add a call at a virtual time, or now if that has passed; return its number.

        A ``daemon`` is periodic work, which alone does not keep a simulation alive.
        """
        if time < self.now:
            time = self.now
        self._count = number = self._count + 1
        if not daemon:
            self.essential += 1
        heapq.heappush(self._heap, (time, number, action, args, daemon))
        return number

    def after(
        self, delay: float, action: Callable[..., object], *args: Any, daemon: bool = False
    ) -> int:
        """Add a call ``delay`` seconds from now; return its number."""
        return self.at(self.now + delay, action, *args, daemon=daemon)

    def cancel(self, number: int) -> None:
        """Cancel a call that is still to come."""
        self._cancelled.add(number)

    def step(self) -> object:
        """Advance to the next event, call it and return the result; IndexError if there is none."""
        self.now, number, action, args, daemon = heapq.heappop(self._heap)
        if not daemon:
            self.essential -= 1
        if number in self._cancelled:
            self._cancelled.remove(number)
            return None
        return action(*args)

    def __len__(self) -> int:
        return len(self._heap)

    def time(self) -> float:
        """Return the virtual time, in seconds; stands in for a clock function."""
        return self.now
