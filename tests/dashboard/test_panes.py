"""What the panes show, on real clusters, without a browser."""

import dask.array as da
import numpy as np
import pytest
from dask import delayed
from distributed import Event, Worker, wait
from distributed.utils_test import async_poll_for, gen_cluster, inc

from dask_marsched.config import Settings
from dask_marsched.dashboard.faults import FaultsPane
from dask_marsched.dashboard.kernels import KernelsPane
from dask_marsched.dashboard.memory import MemoryPane
from dask_marsched.dashboard.operands import OperandsPane
from dask_marsched.dashboard.pages import PANES
from dask_marsched.dashboard.plan import PlanPane
from dask_marsched.dashboard.transfers import TransfersPane
from dask_marsched.monitoring.palette import SET, STATES, colours
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from tests.harness import planned_cluster, plugin_of


def updated(pane):
    """Bring a pane up to date, and return it; nothing of it may have failed."""
    pane.update()
    assert "This pane failed" not in pane.note.text, pane.note.text
    return pane


def all_updated(scheduler):
    return {kind.name: updated(kind(scheduler)) for kind in PANES}


def why_empty(pane):
    """Return why a pane shows nothing, None if it shows something."""
    assert pane.note.visible is not pane._body.visible
    return pane.note.text if pane.note.visible else None


@gen_cluster(client=True, nthreads=[])
async def test_empty_panes_explain_themselves(c, s):
    await c.register_plugin(MarsSchedulerPlugin())
    empty = {name: why_empty(pane) for name, pane in all_updated(s).items()}
    assert "Compute a dask collection" in empty["plan"]
    assert "No operand has been submitted yet" in empty["operands"]
    assert "There is no worker yet" in empty["memory"]
    assert "No result has been moved" in empty["transfers"]
    assert "Kernels are off on all workers: marsched.fusion.kernels" in empty["kernels"]
    assert "Nothing has died or failed" in empty["faults"]


@planned_cluster()
async def test_the_plan_has_a_cell_for_each_operand_in_the_colour_of_its_worker(c, s, *workers):
    x = c.persist(da.ones((40, 40), chunks=10).map_blocks(inc, dtype=float) + 1)
    await wait(x)
    pane = updated(PlanPane(s))
    data = pane.source.data
    operands = observer_of(s).graphs()[0]["operands"]
    assert why_empty(pane) is None
    assert len(data["left"]) == operands
    assert data["done"].tolist() == data["right"].tolist()
    shown = dict(zip(data["name"], data["color"], strict=True))
    assert set(shown) == {ws.address for ws in s.workers.values() if ws.has_what}
    assert len(set(shown.values())) == len(shown)
    assert all(address in pane.legend.text for address in shown)
    assert "100% done" in pane.heading.text


def observer_of(s):
    return plugin_of(s).observer


@planned_cluster()
async def test_what_has_not_changed_is_not_sent_again(c, s, *workers):
    x = c.persist(da.ones((40, 40), chunks=10).map_blocks(inc, dtype=float))
    await wait(x)
    pane = updated(PlanPane(s))
    sent = []
    pane.source.on_change("data", lambda attr, old, new: sent.append(new))
    updated(pane)
    assert sent == []
    await c.compute((x + 1).sum())
    updated(pane)
    assert len(sent) == 1


@planned_cluster()
async def test_the_plan_of_a_chosen_graph(c, s, *workers):
    await c.compute(da.ones(4, chunks=1).sum())
    await c.compute(da.ones(8, chunks=1).sum())
    pane = updated(PlanPane(s))
    assert "Graph 1:" in pane.heading.text
    last, first = pane.choice.select.options[1:]
    assert (last[:2], first[:2]) == ("1:", "0:")
    pane.choice.select.value = first
    assert "Graph 0:" in pane.heading.text
    pane.choice.select.value = "17: gone"
    assert "not remembered any more" in why_empty(pane)


@planned_cluster()
async def test_counts_are_stacked_and_causes_told(c, s, *workers):
    @delayed
    def reader(i):
        raise ValueError("<no such file>")

    future = c.compute(delayed(sum)([reader(i) for i in range(3)]))
    await wait(future)
    pane = updated(OperandsPane(s))
    assert why_empty(pane) is None
    assert pane.source.data["cancelled_top"][-1] == 4
    assert pane.source.data["fatal"][-1] >= 2
    assert "&lt;no such file&gt;" in pane.causes.text
    assert "<no" not in pane.causes.text
    pane.choice.select.value = "last graph"
    assert "Graph 0:" in pane.heading.text


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_memory_without_a_quota(c, s, a, b):
    await c.register_plugin(MarsSchedulerPlugin(settings=Settings(quota_enabled=False)))
    x = c.persist(da.random.random(1000, chunks=100))
    await wait(x)
    pane = updated(MemoryPane(s))
    assert why_empty(pane) is None
    assert "no worker has a quota (marsched.quota.enabled" in pane.heading.text
    assert pane.source.data["private"].sum() == 8000
    assert np.isnan(pane.source.data["quota"]).all()
    assert pane.bars.yaxis[0].major_label_overrides == {0: "0", 1: "1"}


@gen_cluster(client=True, nthreads=[])
async def test_long_names_leave_room_for_the_bars(c, s):
    await c.register_plugin(MarsSchedulerPlugin())
    async with Worker(s.address, name="analysis-default-worker-0b1a2c3d4e") as worker:
        pane = updated(MemoryPane(s))
        assert pane.bars.yaxis[0].major_label_overrides == {0: "analysis-de\u2026r-0b1a2c3d4e"}
        assert pane.source.data["name"] == [worker.name]
        assert pane.source.data["address"] == [worker.address]


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_memory_with_a_quota(c, s, a):
    await c.register_plugin(MarsSchedulerPlugin(settings=Settings(quota_enabled=True)))
    await a.heartbeat()
    pane = updated(MemoryPane(s))
    assert "deferred for lack of memory" in pane.heading.text
    assert pane.source.data["quota"].tolist() == [int(a.memory_manager.memory_limit * 0.75)]
    assert "deferrals" in pane.table.text


@planned_cluster()
async def test_transfers_and_the_estimate(c, s, *workers):
    x = da.random.random((60, 60), chunks=10)
    await c.compute((x @ x.T).sum())
    pane = TransfersPane(s)
    pane.update()
    await async_poll_for(lambda: observer_of(s).transfers()["estimate"] is not None, 5)
    updated(pane)
    assert why_empty(pane) is None
    assert pane.source.data["bytes"].sum() == observer_of(s).transfers()["moved"]
    assert pane.mapper.high == pane.source.data["bytes"].max()
    assert pane.bars.visible
    assert pane.compared.data["bytes"][2] > 0
    assert "Estimates are forecasts of graph 0" in pane.heading.text


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_kernels(c, s, a):
    settings = Settings(kernels_enabled=True, kernels_cache=None)
    await c.register_plugin(MarsSchedulerPlugin(settings=settings))
    await a.heartbeat()
    assert "no expression has been evaluated" in why_empty(updated(KernelsPane(s)))
    x = da.random.random((400, 400), chunks=200)
    await c.compute(((x + 1) * 2 - x).sum())
    await a.heartbeat()
    pane = updated(KernelsPane(s))
    assert why_empty(pane) is None
    assert len(pane.source.data["label"]) >= 1
    assert "1 of 1 workers" in pane.heading.text


@planned_cluster()
async def test_losses(c, s, *workers):
    x = c.persist(da.ones((40, 40), chunks=10).map_blocks(inc, dtype=float))
    await wait(x)
    await workers[0].close(executor_wait=False)
    await async_poll_for(lambda: observer_of(s).faults()["recovered"] == 1, 5)
    pane = updated(FaultsPane(s))
    assert why_empty(pane) is None
    assert pane.source.data["again"][0] > 0
    assert workers[0].address in pane.table.text
    assert "1 worker lost" in pane.heading.text


@planned_cluster()
async def test_panes_go_on_while_operands_run_and_workers_leave(c, s, *workers):
    x = da.ones(32, chunks=1).map_blocks(lambda block: Event("go").wait() and block, dtype=float)
    future = c.compute(x.sum())
    panes = [kind(s) for kind in PANES]
    await async_poll_for(lambda: all(w.state.executing for w in workers), 5)
    for pane in panes:
        updated(pane)
    await workers[2].close(executor_wait=False)
    for pane in panes:
        updated(pane)
    await Event("go").set()
    await future
    for pane in panes:
        updated(pane)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_page_that_stays_open_tells_that_the_plugin_is_gone(c, s, a):
    await c.register_plugin(MarsSchedulerPlugin())
    pane = updated(PlanPane(s))
    await c.unregister_scheduler_plugin("marsched")
    pane.update()
    assert "not in force" in pane.note.text
    await c.register_plugin(MarsSchedulerPlugin())
    observer_of(s).failure = "moved failed: KeyError"
    pane.update()
    assert "The observer has stopped: moved failed" in pane.note.text


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_pane_that_fails_is_counted_and_tells_so(c, s, a):
    await c.register_plugin(MarsSchedulerPlugin())
    pane = PlanPane(s)
    pane.show = lambda observer: 1 / 0
    pane.update()
    assert "This pane failed: ZeroDivisionError" in pane.note.text
    assert plugin_of(s).report()["exceptions"] == {"page plan": 1}


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("count", [1, 8, 9, 100])
def test_colours_of_workers_differ(count):
    found = colours(count)
    assert len(set(found)) == count
    if count > len(SET):  # a scale: each is lighter than the one before
        light = [luminance(colour) for colour in found]
        assert light == sorted(light)


def test_what_failed_is_told_apart_without_colour():
    assert {state for state, (_, pattern) in STATES.items() if pattern != "blank"} == {
        "fatal",
        "cancelled",
    }
    assert len({pattern for _, pattern in STATES.values()}) == 3
