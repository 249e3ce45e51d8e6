"""The observer's answers on real clusters."""

import asyncio
import json
import threading
from unittest import mock

import dask.array as da
import pytest
from dask import delayed
from distributed import Event, wait
from distributed.utils_test import async_poll_for, gen_cluster, inc

from dask_marsched.config import Settings
from dask_marsched.core.operand import State
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from tests.harness import planned_cluster, plugin_of


def observer_of(s):
    found = plugin_of(s).observer
    assert found.failure is None, found.failure
    return found


def everything(observer):
    """Return all that an observer tells of a cluster with a graph, after a way through JSON."""
    found = {
        "graphs": observer.graphs(),
        "operand_counts": observer.operand_counts(),
        "memory": observer.memory(),
        "transfers": observer.transfers(),
        "kernels": observer.kernels(),
        "faults": observer.faults(),
    }
    if found["graphs"]:
        found["plan"] = observer.plan()
    assert observer.failure is None, observer.failure
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return found


def counted(counts):
    return {name: count for name, count in counts.items() if count}


@planned_cluster()
async def test_a_graph_from_its_arrival_to_its_end(c, s, *workers):
    gate = Event("go")
    x = da.ones((40, 40), chunks=10).map_blocks(
        lambda block: Event("go").wait() and block, dtype=float
    )
    future = c.compute((x + x.T).sum())
    await async_poll_for(lambda: s.workers[workers[0].address].processing, 5)
    (graph,) = observer_of(s).graphs()
    assert not graph["done"]
    assert graph["finished"] is None
    assert sum(graph["counts"].values()) == graph["operands"]
    assert set(graph["counts"]) == {state.value for state in State}
    assert graph["policies"]["assignment"] == "units"
    await gate.set()
    await future
    # Dask forgets a while after
    await async_poll_for(lambda: observer_of(s).graphs()[0]["counts"]["finished"] == 1, 5)
    (graph,) = observer_of(s).graphs()
    assert graph["done"]
    assert graph["finished"] >= graph["planned"]
    assert counted(graph["counts"]) == {"finished": 1, "freed": graph["operands"] - 1}
    assert graph["number"] == plugin_of(s).executions.graphs[-1].number
    everything(observer_of(s))
    future.release()
    await async_poll_for(lambda: not s.tasks, 5)
    assert counted(observer_of(s).graphs()[0]["counts"]) == {"freed": graph["operands"]}
    assert observer_of(s)._at == {} == observer_of(s)._loose


@planned_cluster()
async def test_the_picture_shows_the_workers(c, s, *workers):
    x = c.persist(da.ones((40, 40), chunks=10).map_blocks(inc, dtype=float) + 1)
    await wait(x)
    plan = observer_of(s).plan()
    cells = plan["cells"]
    assert plan["ready"]
    assert not plan["aggregated"]
    assert len(cells["column"]) == plan["operands"] == sum(cells["operands"])
    assert {len(column) for column in cells.values()} == {plan["operands"]}
    held = {ws.address: len(ws.has_what) for ws in s.workers.values() if ws.has_what}
    finished = {}
    for worker, count in zip(cells["worker"], cells["finished"], strict=True):
        if count:
            address = plan["workers"][worker]
            finished[address] = finished.get(address, 0) + count
    assert finished == held
    few = observer_of(s).plan(most=4)
    assert few["aggregated"]
    assert len(few["cells"]["column"]) <= 4
    assert sum(few["cells"]["operands"]) == plan["operands"]


@planned_cluster()
async def test_running_operands_are_distinguished_from_sent_ones(c, s, *workers):
    x = da.ones(32, chunks=1).map_blocks(lambda block: Event("go").wait() and block, dtype=float)
    future = c.compute(x.sum())
    # Heartbeats tell of tasks that a thread has begun.
    await async_poll_for(lambda: all(len(w.active_keys) == w.state.nthreads for w in workers), 5)
    for worker in workers:
        await worker.heartbeat()
    observer = observer_of(s)
    observer._counted = float("-inf")
    threads = sum(w.state.nthreads for w in workers)
    assert observer.graphs()[0]["counts"]["running"] == threads
    assert sum(observer.plan()["cells"]["running"]) == threads
    assert observer.operand_counts()["counts"]["running"] == threads
    await Event("go").set()
    await future


@planned_cluster()
async def test_failures_and_what_depends_on_them_have_their_cause(c, s, *workers):
    @delayed
    def reader(i):
        raise ValueError("no such file: x.nc")

    future = c.compute(delayed(sum)([reader(i) for i in range(3)]))
    await wait(future)
    found = observer_of(s).operand_counts(0)
    assert found["counts"]["fatal"] >= 2
    first = found["causes"][0]
    assert (first["state"], first["operand"]) == ("fatal", "reader")
    assert "no such file: x.nc" in first["cause"]
    future.release()
    await async_poll_for(lambda: not s.tasks, 5)
    # still there for those who look afterwards
    assert observer_of(s).operand_counts(0)["counts"]["fatal"] == found["counts"]["fatal"]
    assert observer_of(s).faults()["fatal"] == found["counts"]["fatal"]


@planned_cluster()
async def test_cancelled_operands_have_their_cause(c, s, *workers):
    x = da.ones(8, chunks=1).map_blocks(lambda block: Event("go").wait() and block, dtype=float)
    future = c.compute(x.sum())
    await async_poll_for(lambda: s.workers[workers[0].address].processing, 5)
    await future.cancel()
    await async_poll_for(lambda: not s.tasks, 5)
    found = observer_of(s).operand_counts(0)
    assert found["counts"]["cancelled"] > 0
    (cause,) = {row["cause"] for row in found["causes"]}
    assert cause == "cancelled by a client"
    await Event("go").set()


@planned_cluster()
async def test_operands_in_no_plan_are_counted_and_forgotten(c, s, *workers):
    futures = [c.submit(inc, i) for i in range(5)]
    await wait(futures)
    observer = observer_of(s)
    assert observer.graphs() == []
    assert counted(observer.operand_counts()["counts"]) == {"finished": 5}
    del futures
    await async_poll_for(lambda: not s.tasks, 5)
    assert counted(observer.operand_counts()["counts"]) == {"freed": 5}
    assert observer._loose == {}


@planned_cluster()
async def test_an_operand_of_two_graphs_counts_in_both(c, s, *workers):
    slow = delayed(lambda i: Event("go").wait() and i, pure=True)
    parts = [slow(i) for i in range(4)]
    first = c.compute(delayed(sum)(parts))
    await async_poll_for(lambda: s.workers[workers[0].address].processing, 5)
    second = c.compute(delayed(max)(parts))
    await async_poll_for(lambda: len(observer_of(s).graphs()) == 2, 5)
    await Event("go").set()
    await wait([first, second])
    one, two = observer_of(s).graphs()
    assert one["done"]
    assert two["done"]
    assert (one["operands"], two["operands"]) == (5, 5)


@pytest.mark.extended
@planned_cluster()
async def test_moved_bytes_are_those_that_workers_received(c, s, *workers):
    x = da.random.random((60, 60), chunks=10)
    await c.compute((x @ x.T).sum())
    await async_poll_for(lambda: not any(ws.processing for ws in s.workers.values()), 5)

    def received() -> dict[str, int]:
        return {w.address: sum(t["total"] for t in w.transfer_incoming_log) for w in workers}

    # A worker tells of its last transfer in a message of its own.
    await async_poll_for(lambda: observer_of(s).transfers()["moved"] == sum(received().values()), 5)
    found = observer_of(s).transfers()
    matrix = found["matrix"]
    assert found["moved"] > 0
    assert matrix["between"] == "workers"
    for j, name in enumerate(matrix["names"]):
        assert sum(row[j] for row in matrix["bytes"]) == received()[name]
    assert found["by_handle"] is None
    assert 0 < observer_of(s).graphs()[0]["moved"] <= found["moved"]
    await async_poll_for(lambda: observer_of(s).transfers()["estimate"] is not None, 5)
    estimate = observer_of(s).transfers()["estimate"]
    assert estimate["operands"] == estimate["of"]
    assert estimate["stock"] > 0


@planned_cluster()
async def test_removal_of_the_plugin_cancels_an_estimate(c, s, *workers):
    await c.compute(da.ones((40, 40), chunks=10).sum())
    observer = observer_of(s)
    go = threading.Event()
    with mock.patch("dask_marsched.monitoring.stock_estimates.estimate") as estimate:
        estimate.side_effect = lambda *args: go.wait(30)
        assert observer.transfers()["estimate"] is None  # it is begun
        await c.unregister_scheduler_plugin("marsched")
        await asyncio.wait([observer._estimates._running], timeout=5)
        go.set()
    assert observer._estimates._running.cancelled()
    await c.register_plugin(MarsSchedulerPlugin())


@planned_cluster()
async def test_a_worker_leaves_and_another_joins(c, s, *workers):
    x = c.persist(da.ones((40, 40), chunks=10).map_blocks(inc, dtype=float))
    await wait(x)
    held = len(s.workers[workers[0].address].has_what)
    await workers[0].close(executor_wait=False)
    await async_poll_for(lambda: observer_of(s).faults()["recovered"] == 1, 5)
    found = everything(observer_of(s))
    assert found["faults"]["results_lost"] == held
    assert found["faults"]["recovered"] == 1
    assert len(found["memory"]["workers"]) == len(workers) - 1
    assert found["graphs"][0]["done"]


@gen_cluster(client=True, nthreads=[])
async def test_without_workers_and_without_graphs(c, s):
    await c.register_plugin(MarsSchedulerPlugin())
    found = everything(observer_of(s))
    assert found["graphs"] == []
    assert found["memory"]["workers"] == []
    assert found["transfers"]["reason"] == "no graph has been planned"
    future = c.compute(da.ones(4, chunks=1).sum())
    await async_poll_for(lambda: observer_of(s).graphs(), 5)
    assert observer_of(s).transfers()["reason"] == "there are no workers to estimate for"
    everything(observer_of(s))
    future.release()


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_memory_of_a_worker_with_a_quota(c, s, a):
    await c.register_plugin(MarsSchedulerPlugin(settings=Settings(quota_enabled=True)))
    x = c.persist(da.random.random(1000, chunks=100))
    await wait(x)
    await a.heartbeat()
    found = observer_of(s).memory()
    (row,) = found["workers"]
    assert row["quota"] == int(row["limit"] * 0.75)
    assert row["private"] == 8000
    assert row["process"] > row["private"]
    assert found["quota_on"]
    assert found["thresholds"]["terminate"] == 0.95


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_failing_hook_stops_only_the_observer(c, s, a, b):
    await c.register_plugin(MarsSchedulerPlugin())
    observer = observer_of(s)
    observer._at = None
    assert await c.compute(da.ones(10, chunks=1).sum()) == 10
    observer.graphs()  # a new graph is recorded a little later, or when one asks
    assert observer.failure.startswith("_record_planned failed")
    assert plugin_of(s).report()["active"]
    assert plugin_of(s).report()["exceptions"] == {"_record_planned": 1}


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_it_can_be_switched_off(c, s, a):
    await c.register_plugin(MarsSchedulerPlugin(settings=Settings(observer_enabled=False)))
    assert await c.compute(da.ones(10, chunks=1).sum()) == 10
    assert plugin_of(s).observer is None


@planned_cluster()
async def test_operands_that_ran_before_the_plugin_are_counted(c, s, *workers):
    await c.unregister_scheduler_plugin("marsched")
    x = da.ones(32, chunks=1).map_blocks(lambda block: Event("go").wait() and block, dtype=float)
    future = c.compute(x.sum())
    await async_poll_for(lambda: s.workers[workers[0].address].processing, 5)
    await c.register_plugin(MarsSchedulerPlugin())
    total = len(s.tasks)
    assert sum(observer_of(s).operand_counts()["counts"].values()) == total
    assert observer_of(s).graphs()[0]["number"] == -1
    await Event("go").set()
    await future
    assert observer_of(s).graphs()[0]["done"]


@planned_cluster()
async def test_a_restart_forgets(c, s, *workers):
    await c.compute(da.ones(10, chunks=1).sum())
    plugin_of(s).restart(s)
    assert observer_of(s).graphs() == []
    assert await c.compute(da.ones(10, chunks=1).sum()) == 10
