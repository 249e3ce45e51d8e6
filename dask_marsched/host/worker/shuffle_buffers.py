"""Bounds the memory of distributed's peer-to-peer shuffles on a worker, and reads what arrived."""

from __future__ import annotations

import contextlib
import inspect
import os
from typing import Any

from distributed import Worker
from distributed.metrics import context_meter
from distributed.shuffle._buffer import ShardsBuffer
from distributed.shuffle._comms import CommShardsBuffer
from distributed.shuffle._core import ShuffleRun, id_from_key
from distributed.worker_state_machine import TaskState

from dask_marsched.host.graph.shuffle_tasks import output_partitions
from dask_marsched.host.replacements import Replacements

_LIMITERS = ("memory_limiter_comms", "memory_limiter_disk")
_BUFFERS = ("_comm_buffer", "_disk_buffer")


def misfits(shuffles: Any) -> list[str]:
    """Return how a worker's shuffle plugin differs from what is expected; empty if it does not."""
    found = [
        f"shuffles.{name}.limit is missing"
        for name in _LIMITERS
        if not hasattr(getattr(shuffles, name, None), "limit")
    ]
    runs = getattr(shuffles, "shuffle_runs", None)
    if not inspect.iscoroutinefunction(getattr(runs, "_refresh", None)):
        found.append("shuffles.shuffle_runs._refresh is no coroutine function")
    found += [
        f"shuffles.shuffle_runs.{name} is missing"
        for name in ("_active_runs", "_runs")
        if not hasattr(runs, name)
    ]
    if list(inspect.signature(ShardsBuffer.process).parameters)[1:] != ["id", "shards", "size"]:
        found.append("ShardsBuffer.process does not take 'id', 'shards' and 'size'")
    if list(inspect.signature(ShardsBuffer.write).parameters)[1:] != ["data"]:
        found.append("ShardsBuffer.write does not take 'data'")
    if list(inspect.signature(ShuffleRun.send).parameters)[1:] != ["address", "shards"]:
        found.append("ShuffleRun.send does not take 'address' and 'shards'")
    if list(inspect.signature(ShuffleRun.receive).parameters)[1:] != ["data"]:
        found.append("ShuffleRun.receive does not take 'data'")
    return found


def bound(worker: Worker, nbytes: int, undo: Replacements) -> None:
    """Bound the buffers of a worker's shuffles, if any, and empty messages after use.

    Each of distributed's ten sending tasks, and the writing one, keeps its last message: 355 MiB in
    a rechunk of 125 MB partitions to two workers, 98 MB in a shuffle of frames of 16 MB, which no
    buffer accounts for. The bound of each buffer, one gigabyte by default, becomes ``nbytes``, if
    that is less. A worker's own shards are delivered without a socket.
    """
    shuffles: Any = worker.plugins.get("shuffle")
    if shuffles is None:
        return
    for name in _LIMITERS:
        limiter = getattr(shuffles, name)
        if limiter.limit is not None and limiter.limit > nbytes:
            undo.attribute(limiter, "limit", nbytes)
    runs = shuffles.shuffle_runs

    async def refresh_and_patch(*args: Any, **kwargs: Any) -> Any:
        run = await refresh(*args, **kwargs)
        for buffer in _buffers(run):
            if "process" not in vars(buffer):
                buffer.process = _emptying(buffer)
                if isinstance(buffer, CommShardsBuffer):
                    buffer.send = _handing_over(run)
                    vars(buffer)["write"] = _as_lists(buffer)
        return run

    refresh = undo.attribute(runs, "_refresh", refresh_and_patch)
    undo.callback(_restore_runs, runs)


def received_bytes(worker: Worker, ts: TaskState) -> int:
    """Return the bytes that a worker has received of the partitions that a task puts together."""
    if all(id_from_key(dep.key) is None for dep in ts.dependencies):
        return 0  # it reads no shuffle
    shuffles: Any = worker.plugins.get("shuffle")
    runs = shuffles.shuffle_runs._active_runs if shuffles is not None else {}
    found = 0
    for shuffle, partition in output_partitions(ts.run_spec):
        buffer: Any = getattr(runs.get(shuffle), "_disk_buffer", None)
        if (directory := getattr(buffer, "directory", None)) is None:
            continue  # not for this worker, or in memory
        indices = partition if isinstance(partition, tuple) else (partition,)
        name = "_".join(map(str, indices))
        found += buffer.sizes.get(name, 0)
        with contextlib.suppress(OSError):  # it has received nothing, or not written it yet
            found += os.stat(directory / name).st_size
    return found


def _restore_runs(runs: Any) -> None:
    for run in runs._runs:
        for buffer in _buffers(run):
            vars(buffer).pop("process", None)
            vars(buffer).pop("write", None)
            if isinstance(buffer, CommShardsBuffer):
                buffer.send = run.send


def _buffers(run: Any) -> list[Any]:
    return [buffer for name in _BUFFERS if (buffer := getattr(run, name, None)) is not None]


def _as_lists(buffer: Any) -> Any:
    """Return `ShardsBuffer.write` of messages that can be emptied once they are sent."""
    stock = buffer.write

    async def write(data: dict[str, tuple[Any, Any]]) -> None:
        messages = {address: list(message) for address, message in data.items()}
        data.clear()  # its thread keeps it while it waits for room
        await stock(messages)

    return write


def _emptying(buffer: Any) -> Any:
    """Return `ShardsBuffer.process` that clears its argument afterwards."""
    stock = buffer.process
    # A sending task holds its list of messages and the last of them: a partition's number and
    # its pieces, or bytes. The writing task holds a list of pieces.
    sends = isinstance(buffer, CommShardsBuffer)

    async def process(id: str, shards: list[Any], size: int) -> None:
        try:
            await stock(id, shards, size)
        finally:
            if sends:
                for message in shards:
                    if isinstance(message, list):  # not if it was written before `bound`
                        message.clear()
            shards.clear()

    return process


def _handing_over(run: Any) -> Any:
    """Return `ShuffleRun.send` that delivers a worker's own shards without a socket."""

    async def send(address: str, shards: list[Any]) -> Any:
        if address != run.local_address:
            return await run.send(address, shards)
        run.raise_if_closed()
        with context_meter.clear_callbacks():  # the receiver's times are not the sender's
            return await run.receive(shards)

    return send
