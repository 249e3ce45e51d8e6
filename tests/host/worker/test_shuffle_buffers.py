"""What distributed's shuffles keep in memory, and that they are left as they were."""

from __future__ import annotations

import sys
import weakref

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Event, Worker
from distributed.shuffle._buffer import ShardsBuffer
from distributed.shuffle._core import ShuffleRun
from distributed.shuffle._rechunk import ArrayRechunkRun
from distributed.shuffle._shuffle import DataFrameShuffleRun
from distributed.utils_test import async_poll_for, gen_cluster

from dask_marsched.host.replacements import Replacements
from dask_marsched.host.worker import shuffle_buffers

ROWS = 6


def row(block_info=None):
    """Make a row; the last one not before it is told to."""
    number = block_info[None]["chunk-location"][0]
    if number == ROWS - 1:
        Event("go").wait()
    return np.full((1, 60_000), float(number))


@gen_cluster(client=True)
async def test_sent_shards_are_released_during_the_shuffle(c, s, a, b, monkeypatch):
    made = []
    stock = ArrayRechunkRun._shard_partition

    def noted(self, data, partition_id):
        out = stock(self, data, partition_id)
        made.extend(weakref.ref(part) for _, parts in out.values() for _, (_, part) in parts)
        return out

    monkeypatch.setattr(ArrayRechunkRun, "_shard_partition", noted)
    undo = Replacements()
    for worker in (a, b):
        shuffle_buffers.bound(worker, 1 << 60, undo)
    x = da.map_blocks(row, chunks=((1,) * ROWS, (60_000,)), dtype=float)
    with dask.config.set({"array.chunk-size": 480_000}):  # or rows are joined before they are cut
        columns = x.rechunk((ROWS, 15_000), method="p2p")
        result = c.compute(columns.sum(axis=0))

    def sent():
        written = [
            run._disk_buffer.bytes_written
            for w in (a, b)
            for run in w.plugins["shuffle"].shuffle_runs._runs
        ]
        return sum(written) >= (ROWS - 1) * 60_000 * 8

    await async_poll_for(sent, timeout=10)
    await async_poll_for(lambda: not any(part() is not None for part in made), timeout=10)
    assert len(made) == 4 * (ROWS - 1)
    await Event("go").set()
    assert (await result == sum(range(ROWS))).all()
    undo.close()
    assert "_refresh" not in vars(a.plugins["shuffle"].shuffle_runs)


def frame(number):
    """Make a partition; the last one not before it is told to."""
    if number == ROWS - 1:
        Event("go").wait()
    import pandas as pd

    return pd.DataFrame({"k": np.arange(1000), "n": number})


@gen_cluster(client=True)
async def test_sent_bytes_of_frames_are_released_during_the_shuffle(c, s, a, b, monkeypatch):
    dd = pytest.importorskip("dask.dataframe")
    made = []
    stock = DataFrameShuffleRun._shard_partition

    def noted(self, *args, **kwargs):
        out = stock(self, *args, **kwargs)
        made.extend(content for _, content in out.values())
        return out

    monkeypatch.setattr(DataFrameShuffleRun, "_shard_partition", noted)
    undo = Replacements()
    for worker in (a, b):
        shuffle_buffers.bound(worker, 1 << 60, undo)
    rows = dd.from_map(frame, range(ROWS), meta=frame(0))
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        result = c.compute(rows.shuffle("k").n.sum())
    await async_poll_for(lambda: len(made) == 2 * (ROWS - 1), timeout=10)
    # One reference is that of the list, the other that of the call.
    await async_poll_for(
        lambda: all(sys.getrefcount(made[i]) == 2 for i in range(len(made))), timeout=10
    )
    await Event("go").set()
    assert await result == 1000 * sum(range(ROWS))
    undo.close()


@gen_cluster(client=True)
async def test_a_worker_sends_nothing_to_itself(c, s, a, b, monkeypatch):
    sent = []
    stock = ArrayRechunkRun._send

    async def noted(self, address, shards):
        sent.append((self.local_address, address))
        return await stock(self, address, shards)

    monkeypatch.setattr(ArrayRechunkRun, "_send", noted)
    undo = Replacements()
    for worker in (a, b):
        shuffle_buffers.bound(worker, 1 << 60, undo)
    x = np.arange(64.0).reshape(8, 8)
    columns = da.from_array(x, chunks=(1, 8)).rechunk((8, 1), method="p2p")
    assert (await c.compute(columns) == x).all()
    assert sent
    assert all(sender != receiver for sender, receiver in sent)
    sent.clear()
    measured = {key[2:4] for w in (a, b) for key in w.digests_total if key[0] == "p2p"}
    assert ("background-comms", "send") in measured
    assert ("background-comms", "disk-limiter") not in measured, "that is the receiver's"
    undo.close()
    columns = da.from_array(2 * x, chunks=(1, 8)).rechunk((8, 1), method="p2p")
    assert (await c.compute(columns) == 2 * x).all()
    assert any(sender == receiver for sender, receiver in sent)


@gen_cluster(nthreads=[("127.0.0.1", 1)])
async def test_bounds_are_taken_back(s, a):
    shuffles = a.plugins["shuffle"]
    before = shuffles.memory_limiter_comms.limit, shuffles.memory_limiter_disk.limit
    undo = Replacements()
    shuffle_buffers.bound(a, 1000, undo)
    assert shuffles.memory_limiter_comms.limit == shuffles.memory_limiter_disk.limit == 1000
    undo.close()
    assert (shuffles.memory_limiter_comms.limit, shuffles.memory_limiter_disk.limit) == before


@gen_cluster(nthreads=[("127.0.0.1", 1)])
async def test_a_worker_without_shuffles_is_left_alone(s, a: Worker):
    await a.plugin_remove("shuffle")
    with Replacements() as undo:
        shuffle_buffers.bound(a, 1000, undo)


@gen_cluster(nthreads=[("127.0.0.1", 1)])
async def test_another_distributed_is_noticed(s, a):
    shuffles = a.plugins["shuffle"]
    assert shuffle_buffers.misfits(shuffles) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardsBuffer, "process", lambda self, shards: None)
        patch.setattr(ShardsBuffer, "write", lambda self, shards: None)
        patch.setattr(ShuffleRun, "send", lambda self, shards: None)
        patch.setattr(ShuffleRun, "receive", lambda self, shards: None)
        patch.delattr(shuffles, "memory_limiter_disk")
        assert shuffle_buffers.misfits(shuffles) == [
            "shuffles.memory_limiter_disk.limit is missing",
            "ShardsBuffer.process does not take 'id', 'shards' and 'size'",
            "ShardsBuffer.write does not take 'data'",
            "ShuffleRun.send does not take 'address' and 'shards'",
            "ShuffleRun.receive does not take 'data'",
        ]
