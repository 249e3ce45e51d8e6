"""Simulates hardware: the cores of a host, the links between hosts, and event loops."""

from __future__ import annotations

import dataclasses
import functools
import heapq
from collections import deque
from collections.abc import Callable

from dask_marsched.simulation.cluster.clock import EventQueue


class Cores:
    """The cores of one host, shared equally by all jobs; ``count`` None has a core for every job.

    With ``n`` jobs on ``c`` cores every job advances at the rate ``min(1, c / n)``, so one number,
    the *progress* of a job that was there all the time, orders their ends.
    """

    def __init__(self, queue: EventQueue, count: float | None) -> None:
        self._queue = queue
        self._count = count
        self._progress = 0.0
        self._updated = queue.now
        self._jobs: list[tuple[float, int, Callable[[], object], object]] = []
        self._serial = 0
        self._next: int | None = None

    @property
    def unlimited(self) -> bool:
        """Whether there is a core for every job."""
        return self._count is None

    def run(self, seconds: float, done: Callable[[], object], owner: object = None) -> None:
        """Start a job of ``seconds`` on a core of its own; call ``done`` at its end."""
        if self._count is None:
            self._queue.after(seconds, done)
            return
        self._advance()
        self._serial += 1
        heapq.heappush(self._jobs, (self._progress + seconds, self._serial, done, owner))
        self._plan()

    def abort(self, owner: object) -> None:
        """Forget the jobs of an owner that died: they take no share of the cores any more."""
        self._advance()
        self._jobs = [job for job in self._jobs if job[3] is not owner]
        heapq.heapify(self._jobs)
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
            self._queue.cancel(self._next)
            self._next = None
        if self._jobs:
            delay = max(0.0, self._jobs[0][0] - self._progress) / self._rate()
            self._next = self._queue.after(delay, self._finish)

    def _finish(self) -> None:
        self._next = None
        self._advance()
        end, _, done, _ = heapq.heappop(self._jobs)
        self._progress = max(self._progress, end)
        self._plan()
        done()


class Link:
    """One direction of a network interface, or a disk, in bytes per second; pieces queue up."""

    __slots__ = ("bandwidth", "free_at")

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth
        self.free_at = 0.0

    def take(self, nbytes: int, now: float) -> float:
        """Reserve the link for some bytes; return the seconds until they have passed."""
        self.free_at = max(now, self.free_at) + nbytes / self.bandwidth
        return self.free_at - now


def transfer(sender: Link, receiver: Link, nbytes: int, now: float) -> tuple[float, float]:
    """Reserve both links when both are free, for the time of the slower; return start and end."""
    start = max(now, sender.free_at, receiver.free_at)
    end = start + nbytes / min(sender.bandwidth, receiver.bandwidth)
    sender.free_at = receiver.free_at = end
    return start, end


@dataclasses.dataclass(frozen=True, eq=False)
class Host:
    """What the workers of a host share; its name is their address without the port."""

    name: str
    cores: Cores
    nic_in: Link
    nic_out: Link
    disk: Link


class EventLoop:
    """The event loop of a process; its work takes turns, and shares the host's cores with tasks."""

    __slots__ = ("_cores", "_free_at", "_pending", "_queue", "_running")

    def __init__(self, queue: EventQueue, cores: Cores) -> None:
        self._queue = queue
        self._cores = cores
        self._free_at = 0.0
        #: Work as its seconds and what to call then; a block as the time of its end and None.
        self._pending: deque[tuple[float, Callable[[], object] | None]] = deque()
        self._running = False

    def run(self, seconds: float, done: Callable[[], object]) -> None:
        """Work for ``seconds`` after all earlier work; then call ``done``."""
        if self._cores.unlimited:
            self._free_at = max(self._queue.now, self._free_at) + seconds
            self._queue.at(self._free_at, done)
        else:
            self._pending.append((seconds, done))
            if not self._running:
                self._work()

    def block(self, seconds: float) -> None:
        """Block the loop until something slow has ended, such as a disk, ``seconds`` from now."""
        end = self._queue.now + seconds
        if self._cores.unlimited:
            self._free_at = max(self._free_at, end)
        else:
            self._pending.appendleft((end, None))
            if not self._running:
                self._work()

    def soon(self, done: Callable[[], object]) -> None:
        """Call ``done`` at once if the loop is idle, else after all earlier work."""
        if self._running or self._free_at > self._queue.now:
            self.run(0.0, done)
        else:
            done()

    def _work(self) -> None:
        self._running = True
        while self._pending:
            amount, done = self._pending.popleft()
            if done is None:
                self._queue.at(amount, self._work)
                return
            if amount:
                self._cores.run(amount, functools.partial(self._finish, done))
                return
            done()
        self._running = False

    def _finish(self, done: Callable[[], object]) -> None:
        done()
        self._work()
