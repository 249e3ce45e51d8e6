"""The adapter in a running scheduler: installed, uninstalled, and with policies that fail."""

import asyncio
import logging
import math
from typing import Any

import dask.array as da
import pytest
from distributed import Client, Event, Scheduler, Worker
from distributed import scheduler as scheduler_module
from distributed.utils_test import async_poll_for, captured_logger, gen_cluster, inc

from dask_marsched.api.service import ApiService
from dask_marsched.config import Settings
from dask_marsched.policies.assignment import BoundedUnits
from dask_marsched.policies.ordering import DaskOrder
from dask_marsched.policies.placement import MostBytes
from dask_marsched.policies.unit_queues import UnitQueues
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from dask_marsched.scheduling.worker_registration import WorkerRegistration
from tests.harness import check, planned_cluster, plugin_of, report_of

TWO_WORKERS = [("127.0.0.1", 1)] * 2


def graph(size: int = 40) -> da.Array:
    x = da.random.default_rng(0).random((size, size), chunks=10)
    return (x + x.T).sum(axis=0).sum()


def footprint(scheduler: Scheduler) -> tuple[Any, ...]:
    """Return all that the adapter could leave behind on the scheduler and its module."""
    stealing = scheduler.extensions["stealing"]
    return (
        {k: v for k, v in vars(scheduler).items() if callable(v) or k == "_TRANSITIONS_TABLE"},
        set(vars(scheduler)),
        set(vars(stealing)),
        {k: v for k, v in vars(scheduler_module).items() if callable(v)},
        set(scheduler.plugins),
        {worker: stream.interval for worker, stream in scheduler.stream_comms.items()},
        dict(type(scheduler)._TRANSITIONS_TABLE),
    )


def intervals(scheduler: Scheduler) -> set[float]:
    """Return the seconds that messages to workers wait for others."""
    return {stream.interval for stream in scheduler.stream_comms.values()}


def block(event: str, x: int) -> int:
    Event(event).wait()
    return x + 1


# ---- Installing and uninstalling -------------------------------------------------------------


@gen_cluster(client=True, nthreads=TWO_WORKERS)
async def test_messages_wait_less(c, s, a, b):
    (to_workers,), to_scheduler = intervals(s), c.scheduler_comm.interval
    await c.register_plugin(MarsSchedulerPlugin())
    assert max(intervals(s)) < to_workers
    assert c.scheduler_comm.interval < to_scheduler  # a stock client's, too
    async with Worker(s.address):
        await c.wait_for_workers(3)
        assert len(s.stream_comms) == 3
        assert len(intervals(s)) == 1
        await c.unregister_scheduler_plugin("marsched")
        assert intervals(s) == {to_workers}


@pytest.mark.parametrize("saturation", [1.1, math.inf])
@gen_cluster(client=True, nthreads=TWO_WORKERS)
async def test_unregistering_restores_the_scheduler(c, s, a, b, saturation):
    s.WORKER_SATURATION = saturation
    before = footprint(s)
    await c.register_plugin(MarsSchedulerPlugin())
    assert footprint(s) != before
    plugin = plugin_of(s)
    value = await c.compute(graph())
    await c.unregister_scheduler_plugin("marsched")
    assert footprint(s) == before
    assert plugin.report()["active"] is False
    assert plugin.report()["reason"] == "removed from the scheduler"
    planned = plugin.report()["operands_planned"]
    assert await c.compute(graph()) == value
    assert plugin.report()["operands_planned"] == planned


async def run_through_the_change(c: Any, s: Scheduler, *changes: Any) -> None:
    """Call functions while some tasks run and others are withheld or waiting."""
    event = Event("go")
    roots = c.map(block, ["go"] * 30, range(30), key=[f"root-{i}" for i in range(30)])
    total = c.submit(sum, c.map(inc, roots))
    # All graphs have arrived, not only the first.
    await async_poll_for(
        lambda: total.key in s.tasks and any(ws.processing for ws in s.workers.values()), 5
    )
    for change in changes:
        await change()
        s.validate_state()
    await event.set()
    assert await total == sum(range(30)) + 60
    s.validate_state()


@pytest.mark.parametrize("saturation", [1.1, math.inf])
@gen_cluster(client=True, nthreads=TWO_WORKERS)
async def test_unregistering_while_tasks_run(c, s, a, b, saturation):
    s.WORKER_SATURATION = saturation
    before = footprint(s)

    async def unregister() -> None:
        assert s.queued
        plugin = plugin_of(s)
        await c.unregister_scheduler_plugin("marsched")
        assert footprint(s) == before
        assert plugin.report()["exceptions"] == {}

    await c.register_plugin(MarsSchedulerPlugin())
    await run_through_the_change(c, s, unregister)
    assert footprint(s) == before


@pytest.mark.parametrize("saturation", [1.1, math.inf])
@gen_cluster(client=True, nthreads=TWO_WORKERS)
async def test_registering_while_tasks_run(c, s, a, b, saturation):
    s.WORKER_SATURATION = saturation
    await run_through_the_change(c, s, lambda: c.register_plugin(MarsSchedulerPlugin()))
    assert check(s)["graphs_planned"] == 1


@gen_cluster(client=True, nthreads=TWO_WORKERS)
async def test_registering_a_second_one_replaces_the_first(c, s, a, b):
    before = footprint(s)
    await c.register_plugin(MarsSchedulerPlugin())
    first = plugin_of(s)

    async def replace() -> None:
        with pytest.warns(UserWarning, match="overwriting"):
            await c.register_plugin(MarsSchedulerPlugin(assignment="dfs"))

    await run_through_the_change(c, s, replace)
    assert plugin_of(s) is not first
    assert first.report()["active"] is False
    assert check(s)["policies"]["assignment"] == "dfs"
    await c.unregister_scheduler_plugin("marsched")
    assert footprint(s) == before


@gen_cluster(client=True, nthreads=TWO_WORKERS)
async def test_registering_again(c, s, a, b):
    await c.register_plugin(MarsSchedulerPlugin())
    await run_through_the_change(
        c,
        s,
        lambda: c.unregister_scheduler_plugin("marsched"),
        lambda: c.register_plugin(MarsSchedulerPlugin()),
    )
    check(s)


@gen_cluster(client=True, nthreads=TWO_WORKERS)
async def test_two_clients_register_at_once(c, s, a, b):
    async with Client(s.address, asynchronous=True) as d:
        with captured_logger("dask_marsched") as log:
            await asyncio.gather(*(one.register_plugin(MarsSchedulerPlugin()) for one in (c, d)))
    assert not log.getvalue()
    check(s)


@gen_cluster(client=True, nthreads=TWO_WORKERS)
async def test_graphs_are_planned_while_workers_get_their_plugin(c, s, a, b, monkeypatch):
    asked, told = asyncio.Event(), asyncio.Event()

    async def done(self: WorkerRegistration) -> None:
        asked.set()
        await told.wait()

    monkeypatch.setattr(WorkerRegistration, "done", done)
    registering = asyncio.create_task(c.register_plugin(MarsSchedulerPlugin()))
    await asked.wait()
    await c.compute(graph())
    told.set()
    await registering
    assert check(s)["graphs_planned"] == 1
    assert [name for name in s.plugins if name.startswith("marsched")] == ["marsched"]


@gen_cluster(client=True, nthreads=TWO_WORKERS)
async def test_a_start_that_fails_restores_the_scheduler(c, s, a, b, monkeypatch):
    before = footprint(s)

    def install(self: ApiService) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(ApiService, "install", install)
    with pytest.raises(ZeroDivisionError):
        await c.register_plugin(MarsSchedulerPlugin())
    assert footprint(s) == before


@gen_cluster(client=True, nthreads=TWO_WORKERS)
async def test_two_schedulers_in_one_process(c, s, a, b):
    before = footprint(s)
    async with Scheduler(dashboard_address=":0", port=0) as other:
        first, second = MarsSchedulerPlugin(), MarsSchedulerPlugin()
        await first.start(s)
        await second.start(other)
        first.stop()
        assert scheduler_module._materialize_graph is not before[3]["_materialize_graph"]
        second.stop()
    assert footprint(s) == before


@pytest.mark.extended
@gen_cluster(client=True, nthreads=TWO_WORKERS)
async def test_closing_the_scheduler_restores_it(c, s, a, b):
    before = footprint(s)
    await c.register_plugin(MarsSchedulerPlugin())
    await s.close()
    assert footprint(s)[0] == before[0]
    assert footprint(s)[3] == before[3]


# ---- Not in force ----------------------------------------------------------------------------


@gen_cluster(client=True, nthreads=TWO_WORKERS)
async def test_switched_off(c, s, a, b):
    before = footprint(s)
    await c.register_plugin(MarsSchedulerPlugin(settings=Settings(enabled=False)))
    assert report_of(s)["active"] is False
    assert report_of(s)["reason"] == "switched off by marsched.enabled"
    assert footprint(s)[:4] == before[:4]
    assert await c.compute(graph()) == graph().compute(scheduler="sync")
    assert report_of(s)["graphs_planned"] == 0
    await c.unregister_scheduler_plugin("marsched")
    assert footprint(s) == before


def other_signature(self: Any, ts: Any, worker: Any) -> None: ...


@pytest.mark.parametrize(
    ("owner", "name", "replacement", "said"),
    [
        (Scheduler, "_add_to_processing", other_signature, "takes no 'ws'"),
        (Scheduler, "_create_taskstate_from_graph", None, "is missing"),
        (Scheduler, "_TRANSITIONS_TABLE", {}, "the transition ('waiting', 'processing')"),
        (scheduler_module, "_materialize_graph", other_signature, "takes no 'expr'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@gen_cluster(client=True, nthreads=TWO_WORKERS)
async def test_unknown_distributed_stays_stock(
    c, s, a, b, owner, name, replacement, said, monkeypatch
):
    plugin = MarsSchedulerPlugin()
    with monkeypatch.context() as patch, captured_logger("dask_marsched") as log:
        patch.setattr(owner, name, replacement)
        before = footprint(s)
        await plugin.start(s)
        assert footprint(s) == before
    report = plugin.report()
    assert report["active"] is False
    assert said in report["reason"]
    assert name in report["reason"] or name == "_TRANSITIONS_TABLE"
    assert log.getvalue().count("stays in force") == 1
    s.add_plugin(plugin)
    assert await c.compute(graph()) == graph().compute(scheduler="sync")
    assert plugin.report()["exceptions"] == {}


# ---- Policies that fail ----------------------------------------------------------------------


class Failing:
    """Mixin for a policy: one of its methods raises every n-th time."""

    def __init__(self, method: str, every: int) -> None:
        super().__init__()
        self.method = method
        self.every = every
        self.calls = 0

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__") and name == object.__getattribute__(self, "method"):
            self.calls += 1
            if self.calls % self.every == 0:
                return _fail
        return object.__getattribute__(self, name)


def _fail(*args: Any, **kwargs: Any) -> None:
    raise LookupError("this policy is broken")


class FailingAssignment(Failing, BoundedUnits):
    def effort(self, graph, workers):
        return 0.0 if self.method == "assign" else 1e9


class FailingOrdering(Failing, DaskOrder): ...


class FailingPlacement(Failing, MostBytes): ...


class FailingWithholding(Failing, UnitQueues): ...


FAILURES = [
    ("assignment", FailingAssignment, "assign"),
    ("assignment", FailingAssignment, "prompt"),
    ("ordering", FailingOrdering, "order"),
    ("placement", FailingPlacement, "choose"),
    ("withholding", FailingWithholding, "plan"),
    ("withholding", FailingWithholding, "planned"),
    ("withholding", FailingWithholding, "forget"),
    ("withholding", FailingWithholding, "enqueue"),
    ("withholding", FailingWithholding, "withdraw"),
    ("withholding", FailingWithholding, "offer"),
    ("withholding", FailingWithholding, "accept"),
]


@pytest.mark.extended
@pytest.mark.parametrize("saturation", [1.1, math.inf])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize(
    ("kind", "policy", "method"), FAILURES, ids=lambda v: "" if isinstance(v, type) else str(v)
)
@gen_cluster(client=True, nthreads=TWO_WORKERS)
async def test_a_policy_that_raises(c, s, a, b, kind, policy, method, every, saturation):
    s.WORKER_SATURATION = saturation
    plugin = MarsSchedulerPlugin(**{kind: policy(method, every)})
    before = footprint(s)
    with captured_logger("dask_marsched", level=logging.ERROR) as log:
        await plugin.start(s)
        s.add_plugin(plugin)
        for size in (40, 50, 60):  # other structures, so that no plan is reused
            assert await c.compute(graph(size)) == graph(size).compute(scheduler="sync")
    report = plugin.report()
    assert report["exceptions"]
    assert report["last_exception"] == "LookupError: this policy is broken"
    # a hook logs one traceback, however often it fails
    assert log.getvalue().count("Traceback") == len(report["exceptions"])
    if method in ("plan", "enqueue", "offer", "accept"):
        # A partial plan could leave tasks waiting for ever, so stock scheduling takes over.
        assert footprint(s)[:4] == before[:4]
        assert report["active"] is False
        assert "this policy is broken" in report["reason"]
    s.validate_state()


@gen_cluster(client=True, nthreads=TWO_WORKERS)
async def test_release_that_raises_when_a_worker_leaves(c, s, a, b):
    plugin = MarsSchedulerPlugin(withholding=FailingWithholding("release", 1))
    await plugin.start(s)
    s.add_plugin(plugin)
    with captured_logger("dask_marsched", level=logging.ERROR):
        await run_through_the_change(c, s, lambda: b.close(executor_wait=False))
    assert plugin.report()["exceptions"]


# ---- Queue and stealing ----------------------------------------------------------------------


@planned_cluster(TWO_WORKERS)
async def test_nothing_is_left_in_the_queue(c, s, a, b):
    """A queued task is dispatched as soon as a slot is free."""
    done = c.map(inc, range(40), key=[f"early-{i}" for i in range(40)])
    await asyncio.gather(*done)
    assert not s.queued
    assert not len(plugin_of(s).policies.withholding)


@pytest.mark.parametrize("with_plugin", [False, True])
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 3)
async def test_stealing_forgets_removed_workers(c, s, a, b, d, with_plugin):
    if with_plugin:
        await c.register_plugin(MarsSchedulerPlugin())
    stealing = s.extensions["stealing"]
    for ws in s.workers.values():
        stealing._combined_nprocessing(ws)  # as when it looks for a thief
    gone = s.workers[d.address]
    await d.close()
    # If stock Dask forgets them too, `worker_left` can be removed.
    assert (gone in stealing.in_flight_tasks) != with_plugin


@planned_cluster(TWO_WORKERS)
async def test_stealing_keeps_its_counts_while_it_steals(c, s, a, b):
    stealing = s.extensions["stealing"]
    stealing.in_flight_tasks[s.workers[a.address]] = -1
    stealing.in_flight[object()] = {}
    await b.close()
    assert stealing.in_flight_tasks[s.workers[a.address]] == -1
    stealing.in_flight.clear()
