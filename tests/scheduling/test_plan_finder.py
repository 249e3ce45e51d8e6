"""Plans are remembered, and searched for in a thread."""

import asyncio
import itertools
import threading

import dask
import dask.array as da
import pytest
from distributed import Event, wait
from distributed.utils_test import async_poll_for

from dask_marsched.core.plan import Unit, WorkerSlot
from dask_marsched.fallbacks.counters import Counters
from dask_marsched.policies.planning.plan_search import Search
from dask_marsched.scheduling import plan_finder
from dask_marsched.scheduling.plan_finder import PlanFinder
from tests.graphs import pairwise
from tests.harness import planned_cluster, plugin_of, report_of

WORKERS = [WorkerSlot("a", 1), WorkerSlot("b", 1)]
GRAPH = pairwise(4)
PENDING = {i for i in GRAPH if not GRAPH.inputs[i]}
PROMPT, FOUND = [Unit((i,)) for i in sorted(PENDING)], [Unit(tuple(sorted(PENDING)))]


class Policy:
    name = "slow"

    def __init__(self):
        self.go = threading.Event()
        self.searches = 0
        self.error = None

    def effort(self, graph, workers):
        return 1.0

    def prompt(self, graph, workers, pending=None):
        return PROMPT

    def assign(self, graph, workers, pending=None):
        self.searches += 1
        assert self.go.wait(30)
        if self.error is not None:
            raise self.error
        return FOUND


@pytest.fixture
def beside(monkeypatch):
    monkeypatch.setattr(plan_finder, "extent_of_search", lambda *_: Search.IN_BACKGROUND)


@pytest.fixture
def policy():
    policy = Policy()
    yield policy
    policy.go.set()


async def test_a_search_does_not_block_and_runs_once(beside, policy):
    counters = Counters()
    finder = PlanFinder(policy, counters)
    adopted = [asyncio.get_running_loop().create_future() for _ in range(2)]
    for future in adopted:
        assert finder.find(GRAPH, WORKERS, PENDING, future.set_result) == (PROMPT, True)
    policy.go.set()
    assert await asyncio.gather(*adopted) == [FOUND, FOUND]
    assert finder.find(GRAPH, WORKERS, PENDING, pytest.fail) == (FOUND, False)
    assert policy.searches == counters.plans_reused == 1
    finder.close()


async def test_results_of_searches_are_ignored_after_clear(beside, policy):
    finder = PlanFinder(policy, Counters())
    finder.find(GRAPH, WORKERS, PENDING, pytest.fail)
    finder.clear()
    adopted = asyncio.get_running_loop().create_future()
    finder.find(GRAPH, WORKERS, PENDING, adopted.set_result)
    policy.go.set()
    assert await adopted == FOUND
    finder.close()


async def test_a_search_that_fails_leaves_the_prompt_plan(beside, policy):
    counters = Counters()
    finder = PlanFinder(policy, counters)
    policy.error = ValueError("no plan")
    policy.go.set()
    adopted = asyncio.get_running_loop().create_future()
    assert finder.find(GRAPH, WORKERS, PENDING, adopted.set_result) == (PROMPT, True)
    assert await adopted == []
    assert counters.exceptions["search"] == 1
    finder.close()


def test_without_an_event_loop_the_graph_waits(beside, policy):
    policy.go.set()
    assert PlanFinder(policy, Counters()).find(GRAPH, WORKERS, PENDING, pytest.fail) == (
        FOUND,
        False,
    )


@pytest.mark.parametrize(("extent", "plan"), [(Search.NONE, PROMPT), (Search.BEFORE_START, FOUND)])
def test_the_extent_of_the_search_depends_on_the_time_at_stake(monkeypatch, policy, extent, plan):
    monkeypatch.setattr(plan_finder, "extent_of_search", lambda *_: extent)
    policy.go.set()
    assert PlanFinder(policy, Counters()).find(GRAPH, WORKERS, PENDING, pytest.fail)[0] == plan


def test_the_number_of_remembered_plans_is_bounded(monkeypatch, policy):
    monkeypatch.setattr(plan_finder, "extent_of_search", lambda *_: Search.BEFORE_START)
    monkeypatch.setattr(plan_finder, "_MOST_PLANS", 2)
    policy.go.set()
    finder = PlanFinder(policy, Counters())
    graphs = [pairwise(n) for n in (2, 3, 4)]
    for g in (*graphs, *reversed(graphs)):  # the first one is dropped for the third
        finder.find(g, WORKERS, PENDING, pytest.fail)
    assert policy.searches == 4


@planned_cluster([("127.0.0.1", 1)] * 2)
async def test_a_graph_submitted_again_is_not_planned_again(c, s, *workers):
    for _ in range(3):
        x = da.random.default_rng(1).random((40, 40), chunks=(10, 10))
        await wait(c.persist((x + x.T).sum()))
        await async_poll_for(lambda: not s.tasks, 10)
    assert report_of(s)["plans_reused"] == 2
    assert report_of(s)["graphs_planned"] == 3


@dask.delayed
def gated(i):
    Event("go").wait()
    return i


@planned_cluster([("127.0.0.1", 1)] * 2)
async def test_a_plan_found_later_is_adopted_for_unopened_units(c, s, *workers, beside):
    planner = plugin_of(s)._engine.planner
    tasks = [gated(i) for i in range(40)]
    future = c.compute(dask.delayed(sum)([a + b for a, b in itertools.pairwise(tasks)]))
    await async_poll_for(lambda: report_of(s)["refined"], 10)
    await Event("go").set()
    assert await future == sum(range(39)) + sum(range(1, 40))
    assert not planner._plans
    assert not planner._plan_of
