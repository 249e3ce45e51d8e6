"""The hardware: the cores of a host and the links between hosts."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from dask_marsched.simulation.clock import Event, EventQueue


class Cores:
    """The cores of one host, shared equally by all the work that runs on it.

    Processor sharing: with ``n`` jobs on ``c`` cores every job advances at the rate
    ``min(1, c / n)``. All jobs advance alike, so one number, the *progress* made by any job that
    was there all the time, orders their ends.

    Parameters
    ----------
    queue
        The events of the simulation.
    count
        Cores of the host; None for as many as there are jobs.
    """

    def __init__(self, queue: EventQueue, count: float | None) -> None:
        self._queue = queue
        self._count = count
        self._progress = 0.0
        self._updated = queue.now
        self._jobs: list[tuple[float, int, Callable[[], object]]] = []
        self._serial = 0
        self._next: Event | None = None

    def run(self, seconds: float, done: Callable[[], object]) -> None:
        """Start a job of ``seconds`` on a core of its own; call ``done`` at its end."""
        if self._count is None:
            self._queue.after(seconds, done)
            return
        self._advance()
        self._serial += 1
        heapq.heappush(self._jobs, (self._progress + seconds, self._serial, done))
        self._plan()

    def _rate(self) -> float:
        assert self._count is not None
        return min(1.0, self._count / len(self._jobs)) if self._jobs else 1.0

    def _advance(self) -> None:
        now = self._queue.now
        self._progress += (now - self._updated) * self._rate()
        self._updated = now

    def _plan(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._jobs:
            delay = max(0.0, self._jobs[0][0] - self._progress) / self._rate()
            self._next = self._queue.after(delay, self._finish)

    def _finish(self) -> None:
        self._next = None
        self._advance()
        end, _, done = heapq.heappop(self._jobs)
        self._progress = max(self._progress, end)
        self._plan()
        done()


class Link:
    """One direction of a network interface: transfers pass one after the other.

    Parameters
    ----------
    bandwidth
        Bytes per second.
    """

    __slots__ = ("bandwidth", "free_at")

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth
        self.free_at = 0.0


def transfer(sender: Link, receiver: Link, nbytes: int, now: float) -> tuple[float, float]:
    """Reserve both links for a transfer and return when it starts and when it ends.

    It starts when both are free and takes the time of the slower one.
    """
    start = max(now, sender.free_at, receiver.free_at)
    end = start + nbytes / min(sender.bandwidth, receiver.bandwidth)
    sender.free_at = receiver.free_at = end
    return start, end
