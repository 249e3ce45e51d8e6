"""Which operands and fetches the quota lets start: deferral, forced starts, seceded tasks."""

import asyncio
import operator
import time

import dask.array as da
import numpy as np
import pytest
from distributed import Event, wait, worker_client
from distributed.utils_test import async_poll_for, gen_cluster, inc

from dask_marsched.policies.memory_needs import NeedModel
from tests.harness import planned_cluster
from tests.worker.quota import (
    MB,
    ONE,
    TWO_THREADS,
    admission_of,
    array,
    assert_nothing_is_left,
    blocked_until,
    counts_of,
    gated,
    known,
    leave_free,
    opener,
    with_parts,
    with_quota,
)


@planned_cluster(TWO_THREADS, plugin=with_quota)
async def test_operands_that_do_not_fit_wait(c, s, a):
    await Event("gate").set()
    await known(c, gated, "gate", nbytes=40 * MB)
    await Event("gate").clear()
    leave_free(a, 60 * MB)
    futures = [c.submit(gated, "gate", key=f"gated-{n}", nbytes=40 * MB) for n in range(3)]
    await async_poll_for(lambda: admission_of(a).counts["deferrals"], 5)
    assert len(a.state.executing) == 1
    assert counts_of(a)["queued"] >= 40 * MB
    await Event("gate").set()
    await wait(futures)
    assert counts_of(a)["promised"] == counts_of(a)["queued"] == 0


@planned_cluster(ONE, plugin=with_quota)
async def test_an_operand_larger_than_everything_runs_alone(c, s, a, caplog):
    x = await c.scatter(array(1), hash=False)
    await known(c, array, 7, 30 * MB)
    # Far below what is taken: of that some may be freed at any time.
    admission_of(a).quota.limit = admission_of(a).quota.used // 2
    a.memory_manager.memory_pause_fraction = a.memory_manager.memory_spill_fraction = False
    a.memory_manager.memory_limit = 20 * MB
    told = "'array-.* more than the memory limit of this worker, 19.07 MiB.* use smaller chunks"
    with pytest.warns(UserWarning, match=told):
        assert (await c.submit(array, 7, 30 * MB))[0] == 7
    assert await c.submit(np.sum, x) == 10 * MB / 8
    assert counts_of(a)["evictions"] >= 1
    assert counts_of(a)["forced"] >= 1
    assert "more than the memory limit of this worker, 19.07 MiB" in caplog.text


@planned_cluster(ONE, plugin=with_quota)
async def test_a_memory_error_of_a_task_reaches_the_user(c, s, a):
    def too_much():
        return np.ones(1 << 50)

    with pytest.raises(MemoryError, match="Unable to allocate"):
        await c.submit(too_much)


@planned_cluster(TWO_THREADS, plugin=with_quota)
async def test_sizes_derived_from_the_graph_are_known_before_the_first_operand_runs(c, s, a):
    await wait(c.submit(inc, 1))
    leave_free(a, 30 * MB)
    lazy = da.random.default_rng(0).random((5 * MB,), chunks=10 * MB // 8)  # four of 10 MB
    x = c.persist(lazy)
    await wait(x)
    told = {ts.annotations["marsched"]["nbytes"] for ts in a.state.tasks.values()}
    assert told == {10 * MB}
    # With what they may need beside the result there was room for one at a time.
    assert counts_of(a)["deferrals"] >= 1


@planned_cluster(ONE, plugin=with_parts)
async def test_without_a_quota_workers_get_no_sizes(c, s, a):
    x = c.persist(da.ones((1000,), chunks=500))
    await wait(x)
    assert [ts.annotations for ts in a.state.tasks.values()] == [{}, {}]


async def blocked_and_opener(c, a):
    """Return what runs, and what that waits for, for which there is no room."""
    await known(c, opener, "other", 40 * MB)
    blocked = c.submit(blocked_until, "gate", key="blocked")
    await async_poll_for(lambda: bool(a.state.executing), 5)
    leave_free(a, MB)
    return blocked, c.submit(opener, "gate", 40 * MB, key="opener-1")


@planned_cluster(TWO_THREADS, plugin=with_quota)
async def test_an_operand_is_forced_if_a_running_one_waits_for_it(c, s, a, monkeypatch):
    monkeypatch.setattr("dask_marsched.worker.admission.PATIENCE", 0)
    blocked, opening = await blocked_and_opener(c, a)
    await wait([blocked, opening])
    found = counts_of(a)
    assert found["deferrals"] == found["forced"] == 1


def compute_a_little():
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass


@planned_cluster(TWO_THREADS, plugin=with_quota)
async def test_the_event_loop_does_not_count_as_work(c, s, a):
    blocked, opening = await blocked_and_opener(c, a)
    admission = admission_of(a)
    await async_poll_for(lambda: admission.counts["deferrals"], 5)
    admission._look()
    since = admission._idle.since
    compute_a_little()
    admission._look()
    assert admission._idle.since == since > 0
    await asyncio.to_thread(compute_a_little)
    admission._look()
    assert admission._idle.since > since
    await Event("gate").set()
    await wait([blocked, opening])


@planned_cluster([("127.0.0.1", 2), ("127.0.0.1", 1)], plugin=with_quota)
async def test_a_fetch_is_forced_if_a_running_operand_waits_for_its_reader(c, s, a, b, monkeypatch):
    monkeypatch.setattr("dask_marsched.worker.admission.PATIENCE", 0)
    x = c.submit(array, 1, workers=[b.address], key="x")
    await wait(x)
    blocked = c.submit(blocked_until, "gate", workers=[a.address], key="blocked")
    await async_poll_for(lambda: bool(a.state.executing), 5)
    leave_free(a, MB)
    opening = c.submit(opener, "gate", 8, x, workers=[a.address], key="opener")
    await wait([blocked, opening])
    assert counts_of(a)["throttled"] >= 1


@planned_cluster([("127.0.0.1", 2), ("127.0.0.1", 1)], plugin=with_quota)
async def test_inputs_are_fetched_when_there_is_room(c, s, a, b):
    gate = Event("gate")
    x = c.submit(array, 1, workers=[b.address], key="x")
    await wait(x)
    blocked = c.submit(gated, "gate", workers=[a.address], key="blocked", nbytes=8)
    await async_poll_for(lambda: bool(a.state.executing), 5)
    leave_free(a, 5 * MB)
    total = c.submit(np.sum, x, workers=[a.address], key="total")
    await async_poll_for(lambda: admission_of(a).counts["throttled"], 5)
    assert "x" not in a.data
    await gate.set()
    assert await total == 10 * MB / 8
    await blocked


@planned_cluster([("127.0.0.1", 1), ("127.0.0.1", 1)], plugin=with_quota)
async def test_small_inputs_are_fetched_even_if_nothing_is_free(c, s, a, b):
    xs = [c.submit(operator.mul, n, 2, workers=[b.address]) for n in range(3)]
    empty = c.submit(np.empty, 0, workers=[b.address])
    await wait([*xs, empty])
    assert s.tasks[empty.key].nbytes == 0
    leave_free(a, -50 * MB)
    assert admission_of(a).quota.held == 0  # nothing could be evicted either
    readers = [c.submit(inc, x, workers=[a.address]) for x in xs]
    assert await c.gather(readers) == [1, 3, 5]
    assert await c.submit(len, empty, workers=[a.address]) == 0
    assert counts_of(a)["throttled"] == 0


@planned_cluster(ONE, plugin=with_quota)
async def test_seceded_tasks_hold_nothing_back(c, s, a):
    def outer():
        with worker_client() as client:
            return client.submit(array, 5, 20 * MB).result()

    await known(c, array, 5, 20 * MB)
    leave_free(a, MB)
    np.testing.assert_array_equal(await c.submit(outer), array(5, 20 * MB))
    assert_nothing_is_left(a)


@planned_cluster(TWO_THREADS, plugin=with_quota)
async def test_failing_and_cancelled_tasks_leave_nothing_behind(c, s, a):
    failing = [c.submit(operator.truediv, n, 0) for n in range(5)]
    await wait(failing)
    blocked = c.submit(gated, "gate")
    await async_poll_for(lambda: bool(a.state.executing), 5)
    blocked.release()
    failing.clear()
    await Event("gate").set()
    await async_poll_for(lambda: not a.state.tasks, 5)
    assert_nothing_is_left(a)


@planned_cluster(ONE, plugin=lambda: with_quota(interrupt=True))
async def test_tasks_cancelled_before_they_start_leave_nothing_behind(c, s, a):
    execute = a.execute

    async def cancelled_first(key, *, stimulus_id):
        await c.cancel(futures)
        await async_poll_for(lambda: a.state.tasks[key].state == "cancelled", 5)
        return await execute(key, stimulus_id=stimulus_id)

    a.execute = cancelled_first
    futures = [c.submit(blocked_until, "never", key="blocked")]
    await async_poll_for(lambda: futures[0].cancelled() and not a.state.tasks, 5)
    a.execute = execute
    assert counts_of(a)["admitted"] == 1
    assert_nothing_is_left(a)


@planned_cluster([("127.0.0.1", 2, {"resources": {"R": 1}})], plugin=with_quota)
async def test_resources_are_kept(c, s, a):
    gate = Event("gate")
    blocked = c.submit(gated, "gate", resources={"R": 1}, key="blocked")
    other = c.submit(inc, 1, resources={"R": 1}, key="other")
    free = c.submit(inc, 2, key="free")
    assert await free == 3
    assert a.state.tasks["other"].state == "constrained"
    await gate.set()
    assert await other == 2
    await blocked


@gen_cluster(client=True, nthreads=ONE)
async def test_after_an_exception_in_a_hook_dask_decides(c, s, a, monkeypatch, caplog):
    await c.register_plugin(with_quota())

    def broken(self, kind):
        raise ZeroDivisionError("broken on purpose")

    monkeypatch.setattr(NeedModel, "output", broken)
    assert await c.gather(c.map(inc, range(10))) == list(range(1, 11))
    report = admission_of(a).report()
    assert report["exceptions"] == {"choose": pytest.approx(10, abs=10)}
    assert report["exceptions"]["choose"] >= 1
    assert report["last_exception"] == "ZeroDivisionError: broken on purpose"
    assert caplog.text.count("choose failed") == 1
