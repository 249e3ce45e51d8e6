"""A few tasks need not wait for a large older graph, as with stock Dask."""

import dask
import pytest
from distributed import Event
from distributed.utils_test import async_poll_for, inc

from tests.harness import check, planned_cluster


def held(i):
    Event("go").wait()
    return i


@pytest.mark.parametrize("mapped", [True, False], ids=["map", "graph"])
def test_a_few_tasks_pass_a_queue_of_an_older_graph(mapped):
    @planned_cluster([("127.0.0.1", 1)] * 2)
    async def test(c, s, a, b):
        old = c.map(held, range(20))
        await async_poll_for(lambda: s.queued, 5)
        if mapped:
            new = c.map(inc, range(4), fifo_timeout="0ms")
        else:
            parts = [dask.delayed(inc)(i) for i in range(4)]
            new = [c.compute(dask.delayed(sum)(parts), fifo_timeout=0)]
        await async_poll_for(lambda: all(future.key in s.tasks for future in new), 5)
        ready = [ts for ts in s.tasks.values() if "inc" in str(ts.key)]
        assert len(ready) == 4
        assert {ts.state for ts in ready} == {"processing"}
        assert check(s)["left_to_dask"]["beside an older graph"] == 4
        await Event("go").set()
        await c.gather([*old, *new])

    test()


@planned_cluster([("127.0.0.1", 1)] * 2)
async def test_a_large_graph_waits_for_an_older_one(c, s, a, b):
    old = c.map(held, range(20))
    await async_poll_for(lambda: s.queued, 5)
    new = c.map(inc, range(20))
    await async_poll_for(lambda: all(future.key in s.tasks for future in new), 5)
    assert {s.tasks[future.key].state for future in new} == {"queued"}
    await Event("go").set()
    await c.gather([*old, *new])
