"""Measures for how long the task threads of a worker have been idle."""

from __future__ import annotations

import time

#: Share of a core below which the task threads count as idle.
_IDLE = 0.05


class IdleTime:
    """Watches the processor time of this process. All methods run on the event loop.

    The threads have been idle since `since`, as of `time.monotonic`; 0 while not measured.
    """

    def __init__(self) -> None:
        self.since = self._cpu = 0.0

    def start(self) -> None:
        """Begin to measure, unless that has begun."""
        if not self.since:
            self.since, self._cpu = time.monotonic(), _threads_time()

    def check(self, interval: float) -> None:
        """Begin anew if the threads have worked since the last check, `interval` seconds ago."""
        cpu = _threads_time()
        if cpu - self._cpu > _IDLE * interval:
            self.since = time.monotonic()
        self._cpu = cpu

    def stop(self) -> None:
        """Measure no longer."""
        self.since = 0.0

    def seconds(self) -> float:
        """Return for how long the threads have been idle."""
        return time.monotonic() - self.since if self.since else 0.0


def _threads_time() -> float:
    """Return the CPU seconds of this process except the event loop's, which is never idle."""
    return time.process_time() - time.thread_time()
