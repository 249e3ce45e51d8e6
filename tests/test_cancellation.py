"""Cancelling whole computations, and submitting the same keys again."""

import asyncio

import dask
import dask.array as da
import pytest
from distributed import Client, Event, Scheduler
from distributed.utils_test import async_poll_for, gen_cluster, inc

import dask_marsched
from dask_marsched.config import Settings
from dask_marsched.host.scheduler import cancellation
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from tests.harness import planned_cluster


def interrupting() -> MarsSchedulerPlugin:
    return MarsSchedulerPlugin(settings=Settings(interrupt=True))


def gated(block, gate):
    Event(gate).wait()
    return block + 1


def spin(x):
    while x is not None:
        pass


@pytest.mark.extended
@pytest.mark.parametrize("by", ["future", "number", "all"])
@planned_cluster([("127.0.0.1", 1)] * 2)
async def test_a_whole_computation(c, s, *workers, by):
    x = da.ones((40, 40), chunks=5).map_blocks(gated, "go", dtype=float)
    future = c.compute(x.sum())
    await async_poll_for(lambda: sum(bool(ws.executing) for ws in s.workers.values()) == 2, 5)
    graph = {"future": future, "number": 0, "all": None}[by]
    counts = await dask_marsched.cancel(c, graph)
    assert counts["running"] == 2
    assert counts["ready"] + counts["unscheduled"] > 60
    await async_poll_for(lambda: not s.tasks, 5)
    assert future.cancelled()
    again = c.compute(x.sum())
    await Event("go").set()
    assert await again == 3200


@planned_cluster(plugin=interrupting)
async def test_clients_cancel_with_dependents(c, s, *workers):
    first = c.submit(gated, 1, "go", key="first")
    middle = c.submit(inc, first, key="middle")
    last = c.submit(inc, middle, key="last")
    await async_poll_for(lambda: "last" in s.tasks, 5)
    await c.cancel(first)
    await async_poll_for(lambda: not s.tasks, 5)
    await async_poll_for(lambda: last.cancelled() and middle.cancelled(), 5)
    logged = [text for _, text in await c.get_scheduler_logs()]
    assert any("Scheduler cancels key first" in text for text in logged)
    await Event("go").set()


async def wanted_by_both(c, other, s):
    """Return a future of either client of the same task, which waits for an event."""
    futures = [client.submit(gated, 1, "go", key="x") for client in (c, other)]
    await async_poll_for(lambda: "x" in s.tasks and len(s.tasks["x"].who_wants) == 2, 5)
    return futures


@planned_cluster(plugin=interrupting)
async def test_results_that_another_client_wants_are_not_cancelled(c, s, *workers):
    async with Client(s.address, asynchronous=True) as other:
        mine, theirs = await wanted_by_both(c, other, s)
        await c.cancel(mine)
        await async_poll_for(lambda: len(s.tasks["x"].who_wants) == 1, 5)
        await Event("go").set()
        assert await theirs == 2
        theirs = other.submit(gated, 1, "never", key="y")
        await async_poll_for(lambda: "y" in s.tasks, 5)
        await dask_marsched.cancel(c, c.submit(gated, 1, "never", key="y"), force=True)
        await async_poll_for(theirs.cancelled, 5)
        await Event("never").set()


@planned_cluster(plugin=interrupting)
async def test_inputs_of_results_that_another_client_wants_are_not_cancelled(c, s, *workers):
    async with Client(s.address, asynchronous=True) as other:
        mine, theirs = await wanted_by_both(c, other, s)
        after = c.submit(inc, mine, key="after")
        await c.cancel(mine)
        await async_poll_for(lambda: len(s.tasks["x"].who_wants) == 1, 5)
        await Event("go").set()
        assert await after == 3
        assert await theirs == 2


@planned_cluster(plugin=interrupting)
async def test_keys_cancelled_twice_can_be_submitted_again(c, s, *workers):
    future = c.submit(inc, 1, key="x")
    await future
    await future.cancel()
    await async_poll_for(lambda: "x" not in s.tasks, 5)
    await future.cancel()
    assert await asyncio.wait_for(c.submit(inc, 1, key="x").result(), 10) == 2


def write(gate, written):
    Event(gate).wait()
    Event(written).set()


@planned_cluster(plugin=interrupting)
async def test_released_futures_run_to_their_end(c, s, *workers):
    """As in stock Dask: its result is dropped, but what it writes is there."""
    future = c.submit(write, "go", "written", key="x")
    await async_poll_for(lambda: any("x" in w.state.tasks for w in workers), 5)
    await async_poll_for(lambda: any(w.state.executing for w in workers), 5)
    del future
    await async_poll_for(lambda: "x" not in s.tasks, 5)
    await Event("go").set()
    assert await Event("written").wait(10)


@pytest.mark.parametrize("by", ["future", "number"])
@planned_cluster([("127.0.0.1", 1)], plugin=interrupting)
async def test_interrupt_true_interrupts_all_tasks(c, s, a, by):
    future = c.submit(spin, 1, key="x")
    await async_poll_for(lambda: a.state.executing, 5)
    await dask_marsched.cancel(c, future if by == "future" else 0, interrupt=True)
    await async_poll_for(lambda: not a.state.tasks, 10)
    assert future.cancelled()


@pytest.mark.extended
@planned_cluster([("127.0.0.1", 1)], plugin=interrupting)
async def test_the_same_keys_at_once(c, s, a):
    for turn in range(60):
        with dask.annotate(pure=True):
            future = c.submit(spin, turn, key="same")
        if turn % 2:
            await asyncio.sleep(0.001 * (turn % 10))  # workload: cancelled at any time of its run
        await (c.cancel(future) if turn % 3 else dask_marsched.cancel(c, future))
        del future
        assert await c.submit(inc, turn, key="same") == turn + 1
        # Else the next one is answered with this result.
        await async_poll_for(lambda: not a.state.tasks, 5)


@gen_cluster(client=True, nthreads=[])
async def test_the_stock_handler_is_looked_for_and_put_back(c, s):
    assert cancellation.misfits(s) == []
    await c.register_plugin(interrupting())
    assert s.stream_handlers["cancel-keys"] != s.stimulus_cancel
    await c.unregister_scheduler_plugin("marsched")
    assert s.stream_handlers["cancel-keys"] == s.stimulus_cancel
    s.stream_handlers["cancel-keys"] = Scheduler.retire_workers
    assert len(cancellation.misfits(s)) == 1
    with pytest.raises(KeyError, match="no graph 7"):
        await dask_marsched.cancel(c, 7)


@gen_cluster(client=True, nthreads=[])
async def test_a_handler_of_another_kind_is_left_alone_and_said_so(c, s, caplog):
    other = s.stream_handlers["cancel-keys"] = Scheduler.retire_workers
    await c.register_plugin(interrupting())
    assert s.stream_handlers["cancel-keys"] == other
    assert "running tasks cannot be interrupted" in caplog.text
    await c.unregister_scheduler_plugin("marsched")
    assert s.stream_handlers["cancel-keys"] == other
