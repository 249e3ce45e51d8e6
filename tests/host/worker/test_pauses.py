"""A worker is paused for memory that it can free; what Arrow keeps unused counts nowhere."""

import pytest
from distributed import Event, wait
from distributed.core import Status
from distributed.utils_test import async_poll_for

from tests.harness import planned_cluster
from tests.worker.quota import MB, ONE, admission_of, blocked_until, with_quota

pyarrow = pytest.importorskip("pyarrow")
GB = 1000 * MB


def with_unused_memory(worker, monkeypatch, used, unused):
    """Have the process take so many bytes, some of which Arrow keeps unused."""
    kept = [unused]

    class Pool:
        def release_unused(self):
            kept[0] = 0

    monkeypatch.setattr(pyarrow, "default_memory_pool", Pool)
    monkeypatch.setattr(worker.monitor, "get_process_memory", lambda: used + kept[0])
    return kept


@planned_cluster(ONE, plugin=with_quota, worker_kwargs={"memory_limit": GB})
async def test_a_worker_is_paused_only_for_memory_in_use(c, s, a, monkeypatch):
    with_unused_memory(a, monkeypatch, used=500 * MB, unused=400 * MB)
    await a.memory_manager.memory_monitor(a)
    assert a.status is Status.running
    with_unused_memory(a, monkeypatch, used=900 * MB, unused=0)
    await a.memory_manager.memory_monitor(a)
    assert a.status is Status.paused
    with_unused_memory(a, monkeypatch, used=500 * MB, unused=400 * MB)
    await a.memory_manager.memory_monitor(a)
    assert a.status is Status.running


@planned_cluster(ONE, plugin=with_quota, worker_kwargs={"memory_limit": GB})
async def test_an_idle_worker_keeps_no_unused_memory(c, s, a, monkeypatch):
    with_unused_memory(a, monkeypatch, used=100 * MB, unused=0)
    admission_of(a)._refresh(exact=True)  # it has counted the tests' own process
    kept = with_unused_memory(a, monkeypatch, used=100 * MB, unused=100 * MB)
    blocked = c.submit(blocked_until, "gate")
    await async_poll_for(lambda: a.state.executing, timeout=5)
    for _ in range(20):
        await a.memory_manager.memory_monitor(a)
    assert kept == [100 * MB]
    await Event("gate").set()
    await blocked
    for _ in range(20):
        await a.memory_manager.memory_monitor(a)
    assert kept == [0]


@planned_cluster(ONE, plugin=with_quota, worker_kwargs={"memory_limit": GB})
async def test_a_paused_worker_goes_on_if_nothing_would_free_memory(c, s, a, monkeypatch):
    keys = ["first", "second"]
    futures = [c.submit(blocked_until, "gate", key=key, workers=a.address) for key in keys]
    await async_poll_for(lambda: a.state.executing and a.state.ready, timeout=5)
    with_unused_memory(a, monkeypatch, used=900 * MB, unused=0)
    await a.memory_manager.memory_monitor(a)
    assert a.status is Status.paused
    await Event("gate").set()
    await wait(futures)


@planned_cluster(ONE, plugin=with_quota, worker_kwargs={"memory_limit": GB})
async def test_the_quota_counts_only_memory_in_use(c, s, a, monkeypatch):
    admission = admission_of(a)
    with_unused_memory(a, monkeypatch, used=100 * MB, unused=0)
    admission._refresh(exact=True)
    with_unused_memory(a, monkeypatch, used=500 * MB, unused=200 * MB)
    admission._refresh(exact=True)
    assert admission.quota.free < 100 * MB
    admission._refresh(exact=True)  # memory is short by now
    assert admission.quota.free > 200 * MB
