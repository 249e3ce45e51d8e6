"""Losses of workers on a real cluster are reported."""

import asyncio

import dask.array as da
import pytest
from distributed import Event, wait
from distributed.metrics import time
from distributed.utils_test import async_poll_for, gen_cluster, inc

import dask_marsched
from dask_marsched.config import Settings
from dask_marsched.host.scheduler import adoption
from dask_marsched.host.scheduler.adopters import KEPT
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from tests.harness import planned_cluster, plugin_of


@planned_cluster()
async def test_a_loss_is_reported(c, s, *workers):
    x = c.persist(da.ones((40, 40), chunks=5).map_blocks(inc, dtype=float, name="x"))
    await wait(x)
    held = len(s.workers[workers[0].address].has_what)
    await workers[0].close(executor_wait=False)
    await wait(x)
    await async_poll_for(lambda: len(s.get_events("marsched-failover")) == 2, 5)
    (_, lost), (_, recovered) = s.get_events("marsched-failover")
    assert (lost["action"], recovered["action"]) == ("worker-lost", "recovered")
    assert lost["lost"] == lost["again"] == lost["again_lost"] == held
    assert (lost["excess"], lost["interrupted"], lost["groups"]) == (0, 0, {"x": held})
    assert set(lost["why"].values()) == {"a client wants it"}
    assert recovered["seconds"] >= 0
    assert not plugin_of(s)._failover.recoveries._missing
    status = await dask_marsched.status(c)
    assert status.details["recoveries"]["computed_again"] == held
    assert f"workers lost      1, with {held} results" in str(status)


@pytest.mark.extended
@planned_cluster([("127.0.0.1", 1)] * 2, config={"distributed.admin.low-level-log-length": 50})
async def test_a_loss_of_more_than_the_log_holds(c, s, a, b):
    futures = c.map(inc, range(200), workers=[a.address], allow_other_workers=True)
    await wait(futures)
    held = len(s.workers[a.address].has_what)
    assert held > 60
    await a.close(executor_wait=False)
    await wait(futures)
    found = plugin_of(s).report()["recoveries"]
    assert (found["results_lost"], found["computed_again"], found["excess"]) == (held, held, 0)


@planned_cluster()
async def test_removal_of_an_idle_worker_is_no_loss(c, s, *workers):
    assert await c.submit(inc, 1, workers=[workers[0].address]) == 2
    await workers[2].close()
    assert plugin_of(s).report()["recoveries"]["losses"] == 0
    assert not s.get_events("marsched-failover")


def adopting() -> MarsSchedulerPlugin:
    return MarsSchedulerPlugin(settings=Settings(adopt="all", restart_patience=60))


def gated(name):
    """Wait until an event is set."""
    return Event(name).wait()


@pytest.mark.parametrize("meanwhile", ["it ends elsewhere", "it still runs"])
@planned_cluster([("127.0.0.1", 1)] * 2, plugin=adopting)
async def test_recovery_is_timed_from_the_death_of_the_worker(c, s, a, b, meanwhile):
    adoption = plugin_of(s)._failover._adoption
    waits, goes_on = asyncio.Event(), asyncio.Event()

    async def wait_for_an_heir(dead, seconds):
        waits.set()
        await goes_on.wait()
        return False  # and none came

    adoption.adopters.wait = wait_for_an_heir
    here = {"workers": [a.address], "allow_other_workers": True}
    x = c.submit(inc, 1, key="x", **here)
    await wait(x)
    s.log_event(KEPT, (a.address, "x", None, 1))
    runs = c.submit(gated, "go", key="runs", **here)
    await async_poll_for(lambda: "runs" in a.state.tasks and a.state.executing_count, 5)
    await s.remove_worker(a.address, stimulus_id="died")
    await waits.wait()
    await async_poll_for(lambda: b.state.executing_count, 5)
    x.release()  # so that nothing is lost, and another stimulus came since
    await async_poll_for(lambda: "x" not in s.tasks, 5)
    assert not s.get_events("marsched-failover")
    if meanwhile == "it ends elsewhere":
        await Event("go").set()
        await runs
    removed = time()
    goes_on.set()
    await async_poll_for(lambda: a.address not in s.workers, 5)
    (_, lost), *told = s.get_events("marsched-failover")
    assert (lost["interrupted"], lost["lost"], lost["again"]) == (1, 0, 0)
    assert lost["time"] < removed
    assert len(told) == (meanwhile == "it ends elsewhere")
    await Event("go").set()
    assert await runs
    await async_poll_for(lambda: len(s.get_events("marsched-failover")) == 2, 5)
    (_, recovered) = s.get_events("marsched-failover")[1]
    assert (recovered["action"], recovered["time"]) == ("recovered", lost["time"])
    assert recovered["seconds"] >= removed - lost["time"]
    assert not adoption.departed._reassigned


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_without_shared_memory_it_is_as_in_stock_dask(c, s, a, b):
    """These workers have no nanny."""
    stock = s.handlers["unregister"]
    assert adoption.misfits(s) == []
    await c.register_plugin(MarsSchedulerPlugin(settings=Settings(adopt="all")))
    assert s.handlers["unregister"] != stock
    futures = c.map(inc, range(20))
    await wait(futures)
    await a.close()
    assert await c.gather(futures) == list(range(1, 21))
    report = s.plugins["marsched"].report()["recoveries"]
    assert (report["results_adopted"], report["excess"]) == (0, 0)
    assert report["computed_again"] == report["results_lost"] > 0
    await c.unregister_scheduler_plugin("marsched")
    assert s.handlers["unregister"] == stock
    assert "remove_worker" not in vars(s)
    s.handlers["unregister"] = s.retire_workers
    assert len(adoption.misfits(s)) == 1
    s.handlers["unregister"] = stock
