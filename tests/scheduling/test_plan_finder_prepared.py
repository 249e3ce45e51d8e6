"""Graphs are planned in the offload thread; the plan is the one that the event loop would make."""

import threading

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import Task, TaskRef
from distributed import wait

from dask_marsched.core.plan import WorkerSlot
from dask_marsched.fallbacks.counters import Counters
from dask_marsched.host.graph.result_sizes import ChunkSizes
from dask_marsched.host.graph.task_order import RepeatableOrder
from dask_marsched.host.scheduler import snapshot
from dask_marsched.policies.assignment import BoundedUnits, DepthFirst
from dask_marsched.scheduling.plan_finder import PlanFinder
from dask_marsched.scheduling.planner import Planner
from tests.graphs import pairwise
from tests.harness import check, planned_cluster, plugin_of

TWO_WORKERS = [("127.0.0.1", 1)] * 2
SLOTS = [WorkerSlot("a", 1), WorkerSlot("b", 1)]


def _program(seed=0):
    x = da.random.default_rng(seed).random((60, 60), chunks=10)
    return (x + x.T - x.mean(axis=0)).rechunk((60, 5)).sum(axis=1)


@pytest.fixture
def read(monkeypatch):
    """Count the graphs that were read from the scheduler's tasks, and not in the offload thread."""
    found = []
    stock = snapshot.tasks_to_compute

    def tasks_to_compute(*args):
        found.append(threading.current_thread())
        return stock(*args)

    monkeypatch.setattr(snapshot, "tasks_to_compute", tasks_to_compute)
    return found


@pytest.fixture
def plans(monkeypatch):
    """Collect graph, units and cut up operands of each plan."""
    found = []
    assign = Planner._assign

    def collecting(self, plan, *args):
        units = assign(self, plan, *args)
        keys = [ts.key for ts in plan.tasks]
        assert keys == list(plan.graph.keys)
        found.append((plan.graph, units, {ts.key for ts in self._cut_up}))
        return units

    monkeypatch.setattr(Planner, "_assign", collecting)
    return found


@planned_cluster(TWO_WORKERS)
async def test_the_plan_is_that_of_the_event_loop(c, s, *workers, read, plans):
    planner = plugin_of(s)._engine.planner
    order = plugin_of(s)._adapter.order
    await wait(c.persist(_program()))
    assert not read
    planner._finder._remembered.clear()
    order._prepare = lambda graph, exact: None
    await wait(c.persist(_program(1)))
    assert len(read) == 1
    (before, units, cut_up), (after, expected, their_cut_up) = plans
    assert units == expected
    assert len(cut_up) == len(their_cut_up)
    for part in ("inputs", "nbytes", "known", "home", "home_bytes", "kept", "dependents"):
        assert getattr(before, part) == getattr(after, part)
    check(s)


@planned_cluster(TWO_WORKERS)
async def test_a_graph_that_reads_results_is_read_from_the_tasks(c, s, *workers, read):
    x = await c.persist(da.ones((20, 20), chunks=10))
    result = await c.compute((x + 1).sum())
    assert result == 800
    assert read
    check(s)


@planned_cluster(TWO_WORKERS)
async def test_a_graph_of_unknown_sizes_is_read_from_the_tasks(c, s, *workers, read):
    parts = [dask.delayed(np.ones)(i) for i in range(5)]
    assert await c.compute(dask.delayed(len)(parts)) == 5
    assert len(read) == 1
    check(s)


@planned_cluster(TWO_WORKERS)
async def test_a_graph_some_of_whose_tasks_exist_is_read_from_the_tasks(c, s, *workers, read):
    x = da.random.default_rng(3).random((40, 40), chunks=10)
    first = c.persist(x.sum(axis=0))
    again = c.persist(x.sum(axis=0) + 1)
    await wait([first, again])
    assert len(read) == 1
    check(s)


@planned_cluster(TWO_WORKERS)
async def test_restricted_tasks_are_in_no_unit(c, s, a, b, read, plans):
    with dask.annotate(workers=[a.address]):
        x = da.random.default_rng(2).random((40, 40), chunks=10)
    with dask.config.set({"optimization.fuse.active": False}):
        await wait(c.persist((x + x.T).sum()))
    assert not read
    ((graph, units, _),) = plans
    held = {graph.keys[i] for unit in units for i in unit.operands}
    restricted = {key for key in graph.keys if key[0] == x.name}
    assert restricted
    assert held.isdisjoint(restricted)
    check(s)


def test_a_failure_leaves_the_graph_to_the_event_loop():
    def fail(graph, exact):
        raise ZeroDivisionError

    counters = Counters()
    order = RepeatableOrder(None, counters, fail)
    dsk = {"a": Task("a", max, 1, 2), "b": Task("b", abs, TaskRef("a"))}
    assert order.prepared(dsk, {"a": 0, "b": 1}, ChunkSizes({"a": 8, "b": 8})) is None
    assert counters.exceptions == {"prepare": 1}


def test_a_plan_for_other_workers_is_not_used():
    finder = PlanFinder(BoundedUnits(), Counters())
    graph = pairwise(8)
    prepared = finder.prepare(graph, SLOTS)
    assert prepared.fits(graph, SLOTS, range(len(graph)))
    assert not prepared.fits(graph, SLOTS[:1], range(len(graph)))
    assert not prepared.fits(pairwise(8), SLOTS, range(len(graph)))
    assert not prepared.fits(graph, SLOTS, {0, 1})
    for workers in (SLOTS[:1], SLOTS):
        everything = range(len(graph))
        units, searching = finder.find(graph, workers, everything, pytest.fail, prepared)
        alone = PlanFinder(BoundedUnits(), Counters())
        assert (units, searching) == alone.find(graph, workers, everything, pytest.fail)


def test_a_remembered_plan_is_not_made_again():
    counters = Counters()
    finder = PlanFinder(BoundedUnits(), counters)
    graph = pairwise(8)
    first, _ = finder.find(graph, SLOTS, range(len(graph)), pytest.fail)
    prepared = finder.prepare(graph, SLOTS)
    assert prepared.units is None
    again, _ = finder.find(graph, SLOTS, range(len(graph)), pytest.fail, prepared)
    assert again is first
    assert counters.plans_reused == 1


def test_a_policy_that_does_not_search_is_asked_on_the_event_loop():
    assert PlanFinder(DepthFirst(), Counters()).prepare(pairwise(4), SLOTS) is None
