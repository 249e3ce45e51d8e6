"""Tasks that arrive before any worker are where stock Dask keeps them."""

from __future__ import annotations

import pytest
from distributed import Worker
from distributed.utils_test import async_poll_for, gen_cluster, inc

from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from tests.compat.harness import check


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
