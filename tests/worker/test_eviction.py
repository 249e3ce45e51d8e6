"""What the quota evicts to make room, and how it is read back."""

import operator
import weakref

import numpy as np
import pytest
from dask._task_spec import Task, TaskRef
from distributed import Event, get_worker, wait
from distributed.spill import SpillBuffer
from distributed.utils_test import async_poll_for, gen_cluster, inc
from distributed.worker_state_machine import WorkerState

from dask_marsched.host.graph.fused_tasks import join
from dask_marsched.host.worker.data import WorkerStore
from dask_marsched.policies.memory_needs import OperandKind
from tests.harness import planned_cluster
from tests.worker.quota import (
    MB,
    ONE,
    admission_of,
    array,
    counts_of,
    gated,
    known,
    leave_free,
    with_quota,
)


@planned_cluster(ONE, plugin=with_quota)
async def test_cold_results_are_evicted_to_make_room(c, s, a):
    await known(c, array, 1)
    assert admission_of(a).needs.output(OperandKind("array", 0, 0)) >= 10 * MB
    x, y = c.submit(array, 1, key="array-1"), c.submit(array, 2, key="array-2")
    await wait([x, y])
    needed = c.submit(gated, "gate", x, key="needed")
    await async_poll_for(lambda: bool(a.state.executing), 5)
    leave_free(a, -5 * MB)
    more = c.submit(array, 3, key="array-3")
    await async_poll_for(lambda: admission_of(a).evictor.counts["evictions"], 5)
    # What runs reads x, so that y had to go.
    assert set(a.data.slow) == {y.key}
    await Event("gate").set()
    await wait([needed, more])
    found = counts_of(a)
    assert found["evictions"] >= 1
    assert found["evicted_bytes"] >= 10 * MB
    # As when distributed spills; it is sent to the scheduler with the next heartbeat.
    assert a.digests_total["memory-monitor", "disk-write", "bytes"] >= 10 * MB
    assert await c.submit(operator.itemgetter(0), y) == 2
    np.testing.assert_array_equal(await c.gather(y), array(2))
    assert found["failed_evictions"] == 0


def whether_spilled(key, nbytes):
    return np.full(nbytes // 8, get_worker().data.is_spilled(key), dtype="f8")


@planned_cluster(ONE, plugin=with_quota)
async def test_a_result_is_evicted_before_the_next_operand_is_forced(c, s, a):
    await known(c, whether_spilled, "none", 30 * MB)
    one = c.submit(gated, "gate", key="one")
    await async_poll_for(lambda: bool(a.state.executing), 5)
    # Far below what is taken: of that some may be freed at any time.
    admission_of(a).quota.limit = admission_of(a).quota.used // 2
    two = c.submit(whether_spilled, "one", 30 * MB, workers=[a.address])
    await async_poll_for(lambda: bool(a.state.ready), 5)
    await Event("gate").set()
    assert (await two)[0]
    assert counts_of(a)["forced"] == 1
    del one


def first(x):
    return x[:1]


@planned_cluster(ONE, plugin=with_quota)
async def test_an_edge_does_not_keep_a_chunk_in_memory(c, s, a):
    whole = c.submit(array, 1, key="whole")
    edges = [c.submit(first, whole, key=f"edge-{i}") for i in range(3)]
    await wait(edges)
    assert a.data["edge-0"].base is a.data["whole"]
    leave_free(a, -8 * MB)
    assert await c.submit(inc, 1) == 2
    await async_poll_for(lambda: admission_of(a).evictor.counts["parted"] == 3, 5)
    assert a.data.is_spilled("whole")
    assert a.data.held < MB
    assert counts_of(a)["evicted_bytes"] >= 10 * MB
    assert await c.gather(edges) == [[1.0]] * 3


@planned_cluster(ONE, plugin=with_quota)
async def test_pieces_of_a_chunk_are_evicted_together(c, s, a):
    whole = c.submit(array, 1, key="whole")
    step = 10 * MB // 8 // 4
    cuts = [slice(i * step, (i + 1) * step) for i in range(4)]
    pieces = [c.submit(operator.getitem, whole, cut, key=f"piece-{cut.start}") for cut in cuts]
    await wait(pieces)
    whole.release()
    await async_poll_for(lambda: "whole" not in a.data, 5)
    assert a.data.held == pytest.approx(10 * MB, rel=0.01)
    leave_free(a, -8 * MB)
    assert await c.submit(inc, 1) == 2
    await async_poll_for(lambda: admission_of(a).evictor.counts["evictions"] >= 4, 5)
    assert a.data.held < MB
    assert sum(await c.gather([c.submit(np.sum, p) for p in pieces])) == 10 * MB / 8


_seen = []


def doubled(x):
    _seen.append(weakref.ref(x))
    return x * 2


def with_its_input_gone(x):
    return x + 1 if _seen.pop()() is None else None


def a_fused_reader(c, key):
    steps = (
        Task("double", doubled, TaskRef(key)),
        Task("reader", with_its_input_gone, TaskRef("double")),
    )
    reader = join("reader", ["double"], {step.key: step for step in steps})
    (future,) = c.get({"reader": reader}, ["reader"], sync=False)
    return future


@planned_cluster(ONE, plugin=with_quota)
async def test_inputs_that_are_released_early_are_evicted_before_a_forced_start(c, s, a):
    x = await c.scatter(array(1), hash=False)
    # Far below what is taken: of that some may be freed at any time.
    admission_of(a).quota.limit = admission_of(a).quota.used // 2
    np.testing.assert_array_equal(await a_fused_reader(c, x.key), array(3))
    assert a.data.is_spilled(x.key)
    assert counts_of(a)["forced"] == 1


@planned_cluster(ONE, plugin=with_quota)
async def test_an_input_read_from_disk_is_released_while_its_reader_runs(c, s, a):
    x = await c.scatter(array(1), hash=False)
    assert a.data.evict(x.key) == 10 * MB
    leave_free(a, 40 * MB)
    assert (await a_fused_reader(c, x.key))[0] == 3


@gen_cluster(client=True, nthreads=ONE)
async def test_a_full_disk_keeps_results_in_memory_and_everything_runs(c, s, a, monkeypatch):
    await c.register_plugin(with_quota())

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    await known(c, array, 1)
    x = c.submit(array, 1, key="array-1")
    await wait(x)
    leave_free(a, -5 * MB)
    with monkeypatch.context() as patched:
        patched.setattr("dask_marsched.store.spill_file.os.pwrite", full)
        assert (await c.submit(array, 2, key="array-2"))[0] == 2
        await async_poll_for(lambda: counts_of(a)["failed_evictions"] >= 1, 5)
        assert x.key in a.data.fast
        assert await c.submit(np.sum, x) == 10 * MB / 8


@planned_cluster([("127.0.0.1", 1), ("127.0.0.1", 1)], plugin=with_quota)
async def test_spilled_results_are_sent(c, s, a, b):
    x = c.submit(array, 4, workers=[a.address], key="x")
    await wait(x)
    assert a.data.evict("x") > 0
    leave_free(a, MB)
    assert await c.submit(np.sum, x, workers=[b.address], key="sum") == 4 * 10 * MB / 8
    assert "x" in a.data.slow
    assert counts_of(a)["transfers"] == 0


@planned_cluster(ONE, plugin=with_quota)
async def test_the_store_obeys_the_quota(c, s, a):
    stored = a.data
    assert type(stored) is WorkerStore
    target = int(0.6 * a.memory_manager.memory_limit)
    x = c.submit(array, 1, key="array-1")
    await wait(x)
    leave_free(a, -50 * MB)
    assert await c.submit(inc, 1) == 2
    await async_poll_for(lambda: stored.is_spilled(x.key), 5)
    assert await c.submit(np.sum, x) == 10 * MB / 8
    report = a.plugins["marsched"].report()
    assert report["store"]["spilled"] >= 10 * MB
    assert report["store"]["written_bytes"] >= 10 * MB
    assert "store" not in report["reasons"]
    await c.unregister_scheduler_plugin("marsched")
    await async_poll_for(lambda: type(a.data) is SpillBuffer, 5)
    assert type(a.state) is WorkerState
    assert a.data.n == target
    np.testing.assert_array_equal(await c.gather(x), array(1))
    await c.register_plugin(with_quota())
