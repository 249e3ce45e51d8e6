"""Virtual time: one queue of events, and the clock that it advances."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

#: Virtual time at which every simulation starts, in seconds. Not zero: code that runs in the
#: simulation may take a time of zero for "never".
EPOCH = 1_000_000.0


class Event:
    """An action due at a virtual time; ``cancel`` makes it do nothing."""

    __slots__ = ("action", "args", "daemon", "time")

    def __init__(
        self, time: float, action: Callable[..., object], args: tuple[Any, ...], daemon: bool
    ) -> None:
        self.time = time
        self.action: Callable[..., object] | None = action
        self.args = args
        self.daemon = daemon

    def cancel(self) -> None:
        """Forget the action; the event stays in the queue and runs nothing."""
        self.action = None
        self.args = ()


class EventQueue:
    """Events in order of time; those of equal time run in the order in which they were added.

    Attributes
    ----------
    now : float
        The virtual time, in seconds. It never goes back.
    essential : int
        Events in the queue that are not periodic (``daemon``). When there is none left, nothing
        but the ticking of timers can ever happen.
    """

    def __init__(self) -> None:
        self.now = EPOCH
        self.essential = 0
        self._heap: list[tuple[float, int, Event]] = []
        self._count = 0

    def at(
        self, time: float, action: Callable[..., object], *args: Any, daemon: bool = False
    ) -> Event:
        """Add an action at a virtual time; a time in the past means now.

        Parameters
        ----------
        time
            Seconds of virtual time.
        action, args
            What is called then.
        daemon
            True for periodic work, which alone does not keep a simulation alive.
        """
        event = Event(max(time, self.now), action, args, daemon)
        self._count += 1
        if not daemon:
            self.essential += 1
        heapq.heappush(self._heap, (event.time, self._count, event))
        return event

    def after(
        self, delay: float, action: Callable[..., object], *args: Any, daemon: bool = False
    ) -> Event:
        """Add an action ``delay`` seconds from now."""
        return self.at(self.now + delay, action, *args, daemon=daemon)

    def step(self) -> object:
        """Advance to the next event, run it and return what its action returned.

        Raises
        ------
        IndexError
            If the queue is empty.
        """
        time, _, event = heapq.heappop(self._heap)
        self.now = time
        if not event.daemon:
            self.essential -= 1
        if event.action is None:
            return None
        return event.action(*event.args)

    def __len__(self) -> int:
        return len(self._heap)

    def time(self) -> float:
        """Return the virtual time, in seconds; stands in for a clock function."""
        return self.now
