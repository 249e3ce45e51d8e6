"""Tasks that no worker can run are where stock Dask keeps them."""

from __future__ import annotations

import pytest
from dask import delayed
from distributed import Status, Worker
from distributed.utils_test import async_poll_for, gen_cluster, inc

from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from tests.harness import check, planned_cluster


@pytest.mark.parametrize("saturation", [1.0, float("inf")])
def test_tasks_wait_for_the_first_worker(saturation):
    @gen_cluster(
        client=True, nthreads=[], config={"distributed.scheduler.worker-saturation": saturation}
    )
    async def waiting(c, s):
        await c.register_plugin(MarsSchedulerPlugin())
        alone, *futures = [c.submit(inc, -1, key="alone"), *c.map(inc, range(8))]
        await async_poll_for(lambda: len(s.tasks) == 9, 5)
        kept = s.queued if saturation == 1.0 else s.unrunnable
        assert set(kept) == set(s.tasks.values())
        async with Worker(s.address, nthreads=1):
            assert await c.gather([alone, *futures]) == list(range(9))
        withheld = check(s)["withheld"]
        assert sum(withheld.values()) >= 8  # dispatched by the plan

    waiting()


@planned_cluster([("127.0.0.1", 4)], config={"distributed.worker.memory.pause": False})
async def test_a_planned_graph_waits_for_a_paused_worker(c, s, a):
    a.status = Status.paused
    await async_poll_for(lambda: not s.running, 5)
    futures = c.compute([delayed(inc)(i, dask_key_name=f"x{i}") for i in range(3)])
    await async_poll_for(lambda: len(s.unrunnable) == 3, 5)
    a.status = Status.running
    assert await c.gather(futures) == [1, 2, 3]
