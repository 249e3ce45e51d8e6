"""Shortens the time for which a message waits for others that are sent with it.

Stock Dask's scheduler sends to a worker every 5 ms at most, and a client to the scheduler every
10 ms. So a task of a millisecond whose input was computed just now waits for several.
"""

from __future__ import annotations

from typing import Any

from distributed.scheduler import Scheduler

#: Seconds between messages of a client. With less, many calls at once need more messages.
_OF_CLIENT = 0.005
#: Seconds between messages to a worker, as between a worker's own. Half of it gains nothing more.
_TO_WORKER = 0.002


def send_often(client: Any) -> None:
    """Shorten the interval of a client's stream to the scheduler, if it is connected."""
    _shorten(client.scheduler_comm, _OF_CLIENT)


def _shorten(stream: Any, seconds: float) -> float | None:
    """Shorten the interval of a `BatchedSend`; return what it was, None for another stream."""
    before: float | None = getattr(stream, "interval", None)
    if before is not None:
        stream.interval = min(before, seconds)
    return before


class WorkerStreams:
    """Shortens the intervals of a scheduler's streams to its workers."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._before: float | None = None  #: The same for all: stock Dask has a constant.

    def install(self) -> None:
        """Shorten those of the workers that are there."""
        for worker in self._scheduler.stream_comms:
            self.joined(worker)

    def joined(self, worker: str) -> None:
        """Shorten that of a worker that has joined."""
        self._before = _shorten(self._scheduler.stream_comms[worker], _TO_WORKER)

    def uninstall(self) -> None:
        """Restore all of them. Idempotent."""
        before, self._before = self._before, None
        if before is not None:
            for stream in self._scheduler.stream_comms.values():
                stream.interval = before
