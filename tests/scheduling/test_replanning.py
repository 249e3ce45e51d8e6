"""Plans are remade when a cluster has grown much, but not whenever a worker joins."""

import contextlib
import itertools
from operator import add

import dask
import pytest
from distributed import Client, Event, Scheduler, Worker, wait
from distributed.utils_test import async_poll_for, inc

from dask_marsched.host.scheduler import snapshot
from tests.harness import planned_cluster, report_of


@dask.delayed
def gated(i):
    Event("go").wait()
    return i


async def grow(c: Client, s: Scheduler, n_workers: int) -> int:
    """Return how often a graph was planned again, while so many workers join."""
    # Each worker is sent two of them: some have to be left when the last one joins.
    tasks = [gated(i) for i in range(4 * n_workers)]
    futures = c.compute([a + b for a, b in itertools.pairwise(tasks)])
    await async_poll_for(lambda: s.tasks, 10)
    async with contextlib.AsyncExitStack() as workers:
        for _ in range(n_workers):
            await workers.enter_async_context(Worker(s.address, nthreads=1, validate=True))
        replanned = report_of(s)["replanned"]
        await Event("go").set()
        await wait(futures)
    return replanned


@pytest.mark.extended
@planned_cluster([])
async def test_a_graph_that_comes_before_the_workers(c, s):
    assert await grow(c, s, 17) == 3  # for the first, the fourth and the sixteenth


@planned_cluster([("127.0.0.1", 1)] * 2)
async def test_a_cluster_that_grows(c, s, *workers):
    assert await grow(c, s, 8) == 1  # for the eighth of ten


@planned_cluster([("127.0.0.1", 1)] * 2)
async def test_a_submitted_task_needs_no_plan(c, s, *workers):
    future = c.compute(gated(0))
    for _ in range(100):
        future = c.submit(inc, future, pure=False)
    await async_poll_for(lambda: len(s.tasks) == 101, 10)
    assert report_of(s)["operands_planned"] == 0
    await Event("go").set()
    assert await future == 100


@planned_cluster([("127.0.0.1", 1)] * 2)
async def test_tasks_that_a_small_graph_waits_for_are_not_all_read(c, s, *workers):
    """In a long line of them each would read all before it."""
    future = c.compute(gated(0))
    for _ in range(50):
        one, other = c.compute([gated(future), gated(future)])
        future = c.submit(add, one, other, pure=False)
    await async_poll_for(lambda: len(s.tasks) == 151, 10)
    read = report_of(s)["operands_planned"]
    assert 100 <= read <= 50 * 3 * snapshot._MOST_AWAITED
    await Event("go").set()
    assert await future == 0
