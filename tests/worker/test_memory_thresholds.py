"""distributed's memory thresholds on a worker with a quota, and results that cannot be spilled."""

from __future__ import annotations

import sys

import psutil
import pytest
from distributed import wait
from distributed.system_monitor import SystemMonitor
from distributed.utils_test import async_poll_for, gen_cluster, inc

from dask_marsched.config import Settings
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from tests.harness import planned_cluster

ONE = [("127.0.0.1", 1)]
GB = 10**9


@pytest.fixture(autouse=True)
def memory_of_this_test(monkeypatch):
    """Let no worker be paused for what earlier tests have left in this process."""
    stock, before = SystemMonitor.get_process_memory, psutil.Process().memory_info().rss
    monkeypatch.setattr(
        SystemMonitor, "get_process_memory", lambda monitor: max(0, stock(monitor) - before)
    )


def with_quota():
    return MarsSchedulerPlugin(settings=Settings(store_shared=False, kernels_enabled=False))


class Stubborn:
    """An object that says how large it is, and that cannot be pickled."""

    def __init__(self, nbytes=0):
        self.nbytes = nbytes

    def __sizeof__(self):
        return self.nbytes

    def __reduce__(self):
        raise ValueError("not to be pickled")


@planned_cluster(ONE, plugin=with_quota, worker_kwargs={"memory_limit": GB})
async def test_the_quota_takes_the_place_of_thresholds_that_nobody_has_set(c, s, a):
    assert a.data.fast.n == sys.maxsize
    assert a.memory_manager.memory_spill_fraction > 0.7


SPILL = {
    "distributed.worker.memory.target": 0.5,
    "distributed.worker.memory.spill": 0.65,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.monitor-interval": "10ms",
}


@planned_cluster(ONE, plugin=with_quota, worker_kwargs={"memory_limit": GB}, config=SPILL)
async def test_thresholds_of_the_user_stay_in_force(c, s, a):
    assert a.data.fast.n == GB // 2
    assert a.memory_manager.memory_spill_fraction == 0.65
    a.monitor.get_process_memory = lambda: 700_000_000 if a.data.fast else 0
    x = c.submit(inc, 1, key="x")
    await async_poll_for(lambda: a.data.is_spilled("x"), 10)
    assert await x == 2


MANAGED = {**SPILL, "distributed.worker.memory.spill": False}


@planned_cluster(ONE, plugin=with_quota, worker_kwargs={"memory_limit": GB}, config=MANAGED)
async def test_the_memory_of_the_process_evicts_nothing_if_the_user_says_so(c, s, a):
    a.monitor.get_process_memory = lambda: 10 * GB
    admission = a.plugins["marsched"]._parts["quota"]
    admission._refresh(exact=True)
    assert admission._footprints.floor > 9 * GB  # no task is charged for it
    kept = []
    for i in range(5):
        kept.append(c.submit(bytes, GB // 50, key=f"x-{i}"))
        await wait(kept)
    assert set(a.data.fast) == {x.key for x in kept}


@planned_cluster(ONE, plugin=with_quota, worker_kwargs={"memory_limit": GB})
async def test_a_result_larger_than_the_limit_that_cannot_be_pickled_fails(c, s, a):
    x = c.submit(Stubborn, 2 * GB, key="x")
    await wait(x)
    with pytest.raises(TypeError, match="Failed to pickle 'x'"):
        await x
    assert await c.submit(inc, 1) == 2


TINY = {**SPILL, "distributed.worker.memory.target": 1e-9, "distributed.worker.memory.spill": False}


@planned_cluster(ONE, plugin=with_quota, worker_kwargs={"memory_limit": GB}, config=TINY)
async def test_an_object_without_weak_references_is_read_once_from_disk(c, s, a):
    x = await c.scatter(["long" * 1000], hash=False)
    assert a.data.is_spilled(x[0].key)
    await wait(c.submit(len, x[0]))
    assert a.data.slow.counters["read"] == 1
    assert await x[0] == "long" * 1000
    assert a.data.slow.counters["read"] == 2
    # nothing keeps it in memory
    assert all(entry.value[0]() is None for entry in a.data.slow.entries.values() if entry.value)


def metrics_of_spilled_results(plugin):
    found = {}

    @gen_cluster(
        client=True,
        nthreads=ONE,
        worker_kwargs={"memory_limit": GB},
        config={**TINY, COMPRESS: "zlib"},
    )
    async def spilled_and_read(c, s, a):
        if plugin:
            await c.register_plugin(with_quota())
        x = c.submit(list, "long" * 1000, key="x")
        assert await c.submit(len, x, key="y") == 4000
        assert len(await x) == 4000
        for key, value in a.digests_total.items():
            if isinstance(key, tuple) and key[0] != "memory-monitor":
                found[tuple(part for part in key if part not in s.extensions["spans"].spans)] = (
                    value
                )

    spilled_and_read()
    return found


COMPRESS = "distributed.worker.memory.spill-compression"


def test_spilling_is_measured_as_in_stock_dask():
    stock, ours = (metrics_of_spilled_results(plugin) for plugin in (False, True))
    assert set(ours) == set(stock)
    for kind, *labels in stock:
        if "count" in labels:
            assert ours[(kind, *labels)] == stock[(kind, *labels)], labels
