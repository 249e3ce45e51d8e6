"""Simulates a batched stream of messages, as ``distributed.batched.BatchedSend``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask_marsched.simulation.cluster.clock import EventQueue
from dask_marsched.simulation.cluster.machine import EventLoop


class BatchedStream:
    """Collect messages and deliver them together, at most once per interval (in seconds).

    The first message after a pause leaves at once; later ones wait for the interval and for the
    sender's event loop, so that batches grow under load. A batch takes the loop ``cost`` seconds.
    """

    def __init__(
        self,
        queue: EventQueue,
        interval: float,
        latency: float,
        deliver: Callable[[list[dict[str, Any]]], object],
        loop: EventLoop,
        cost: float,
    ) -> None:
        self._queue = queue
        self.interval = interval
        self._latency = latency
        self._deliver = deliver
        self._loop = loop
        self._cost = cost
        self._buffer: list[dict[str, Any]] = []
        self._next_send = 0.0
        self._closed = False

    def send(self, *messages: dict[str, Any]) -> None:
        """Put messages into the next batch."""
        if self._closed or not messages:
            return
        if not self._buffer:
            self._queue.at(self._next_send, self._loop.run, self._cost, self._flush)
        self._buffer.extend(messages)

    def _flush(self) -> None:
        batch, self._buffer = self._buffer, []
        self._next_send = self._queue.now + self.interval
        if batch and not self._closed:
            self._queue.after(self._latency, self._deliver, batch)

    def closed(self) -> bool:
        """Return True once the stream was aborted."""
        return self._closed

    def abort(self) -> None:
        """Drop all undelivered messages, and deliver no further ones."""
        self._closed = True
        self._buffer = []

    async def close(self) -> None:
        """Close at once, without telling the other side."""
        self.abort()
