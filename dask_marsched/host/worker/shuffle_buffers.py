"""Memory of distributed's peer-to-peer shuffles on a worker: bounded, let go of, handed over."""

from __future__ import annotations

import inspect
from typing import Any

from distributed import Worker
from distributed.shuffle._buffer import ShardsBuffer
from distributed.shuffle._comms import CommShardsBuffer
from distributed.shuffle._core import ShuffleRun

_LIMITERS = ("memory_limiter_comms", "memory_limiter_disk")
_BUFFERS = ("_comm_buffer", "_disk_buffer")


def misfits(shuffles: Any) -> list[str]:
    """Return what in a worker's shuffle plugin is not as expected; empty if all is well."""
    found = [f"shuffles.{name} is missing" for name in _LIMITERS if not hasattr(shuffles, name)]
    runs = getattr(shuffles, "shuffle_runs", None)
    if not inspect.iscoroutinefunction(getattr(runs, "_refresh", None)):
        found.append("shuffles.shuffle_runs._refresh is no coroutine function")
    if not hasattr(runs, "_runs"):
        found.append("shuffles.shuffle_runs._runs is missing")
    if list(inspect.signature(ShardsBuffer.process).parameters)[1:] != ["id", "shards", "size"]:
        found.append("ShardsBuffer.process does not take 'id', 'shards' and 'size'")
    if list(inspect.signature(ShuffleRun.send).parameters)[1:] != ["address", "shards"]:
        found.append("ShuffleRun.send does not take 'address' and 'shards'")
    if list(inspect.signature(ShuffleRun.receive).parameters)[1:] != ["data"]:
        found.append("ShuffleRun.receive does not take 'data'")
    return found


class ShuffleBuffers:
    """Bounds the buffers of a worker's shuffles, and takes from messages what they need not hold.

    Their bound is set by configuration only, to a gigabyte, whatever the memory limit is.

    Each of the ten tasks that send, and the one that writes to disk, keeps the pieces it has dealt
    with last until there are others. Those of one input partition for one worker are one message,
    however large: of a rechunk of 125 MB partitions to two workers 355 MiB stayed on a worker for
    as long as anything was being read, and were in no buffer's account.

    What a worker cuts for itself it sends to itself, too, through a socket. Here it is handed over.

    Parameters
    ----------
    worker
        The worker. Nothing is done where it has no plugin for shuffles.
    """

    def __init__(self, worker: Worker) -> None:
        self._shuffles: Any = worker.plugins.get("shuffle")
        self._limits: list[tuple[Any, int]] = []
        self._refresh: Any = None

    def bound(self, nbytes: int) -> None:
        """Let the buffers take no more than this each, bytes."""
        for name in _LIMITERS:
            limiter: Any = getattr(self._shuffles, name, None)
            limit = getattr(limiter, "limit", None)
            if limit is not None and limit > nbytes:
                self._limits.append((limiter, limit))
                limiter.limit = nbytes

    def attend(self) -> None:
        """Empty messages once they are dealt with, and hand over our own, in shuffles to come."""
        if self._shuffles is None:
            return
        runs = self._shuffles.shuffle_runs
        self._refresh = refresh = runs._refresh

        async def refresh_and_attend(*args: Any, **kwargs: Any) -> Any:
            run = await refresh(*args, **kwargs)
            for buffer in _buffers(run):
                if "process" not in vars(buffer):
                    buffer.process = _emptying(buffer)
                    if isinstance(buffer, CommShardsBuffer):
                        buffer.send = _handing_over(run)
            return run

        runs._refresh = refresh_and_attend

    def restore(self) -> None:
        """Leave the shuffles to distributed again. Idempotent."""
        for limiter, limit in self._limits:
            limiter.limit = limit
        self._limits.clear()
        if self._refresh is None:
            return
        runs = self._shuffles.shuffle_runs
        del runs._refresh
        self._refresh = None
        for run in runs._runs:
            for buffer in _buffers(run):
                vars(buffer).pop("process", None)
                if isinstance(buffer, CommShardsBuffer):
                    buffer.send = run.send


def _buffers(run: Any) -> list[Any]:
    """Return what a shuffle sends and writes from."""
    return [buffer for name in _BUFFERS if (buffer := getattr(run, name, None)) is not None]


def _emptying(buffer: Any) -> Any:
    """Return `ShardsBuffer.process` that leaves nothing in what it was given."""
    stock = buffer.process
    # A task that sends holds the list of its messages, and the last of them besides: the pieces
    # of a partition with its number. What is written to disk, or kept, is a list of pieces.
    sends = isinstance(buffer, CommShardsBuffer)

    async def process(id: str, shards: list[Any], size: int) -> None:
        try:
            await stock(id, shards, size)
        finally:
            if sends:
                for _, pieces in shards:
                    if isinstance(pieces, list):  # of a dataframe it is bytes
                        pieces.clear()
            shards.clear()

    return process


def _handing_over(run: Any) -> Any:
    """Return `ShuffleRun.send` that sends nothing to the worker itself."""

    async def send(address: str, shards: list[Any]) -> Any:
        if address != run.local_address:
            return await run.send(address, shards)
        run.raise_if_closed()
        return await run.receive(shards)

    return send
