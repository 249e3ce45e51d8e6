"""Results that take long to compute get a second copy, which stays."""

from collections.abc import Callable
from typing import Any

from distributed import Event, Scheduler, Worker, wait
from distributed.utils_test import async_poll_for

from dask_marsched.config import Settings
from dask_marsched.host.scheduler import extra_replicas as protection
from dask_marsched.host.scheduler import replica_removal
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from dask_marsched.simulation import simulate
from tests.compat.harness import check, planned_cluster
from tests.simulation.test_invariants import Job

TWO_WORKERS = [("127.0.0.1", 1)] * 2
#: A line of four tasks of ten seconds, whose end waits for a fifth, of 100 s, to be joined.
LINE = Job(
    ((), (0,), (1,), (2,), (), (3, 4)),
    (10.0, 10.0, 10.0, 10.0, 100.0, 1.0),
    (1000,) * 6,
)


def protecting() -> MarsSchedulerPlugin:
    return MarsSchedulerPlugin(settings=Settings(protects=True, fusion="off"))


def protecting_cluster(dear: float = 0.0, share: float = 0.5) -> Callable[..., Any]:
    """Make a cluster where that is worth a copy which takes so many seconds to have again."""

    def tune(plugin: MarsSchedulerPlugin) -> None:
        found = plugin._failover._protection
        found.least, found.share = dear, share

    return planned_cluster(TWO_WORKERS, plugin=protecting, tune=tune)


@protecting_cluster()
async def test_a_second_copy_is_made_and_kept(c, s, a, b):
    future = c.submit(bytes, 1000, key="x")
    await wait(future)
    await async_poll_for(lambda: len(s.tasks["x"].who_has) == 2, 10)
    s.extensions["amm"].run_once()
    for worker in (a, b):  # it would have been told to drop it before this
        await c.submit(abs, -1, workers=[worker.address], pure=False)
    assert len(s.tasks["x"].who_has) == 2
    assert (check(s)["protected"], check(s)["protected_bytes"]) == (1, s.tasks["x"].nbytes)
    del future
    await async_poll_for(lambda: not s.tasks, 10)
    assert not s.plugins["marsched"]._failover._protection._kept
    # Without the plugin Dask drops one of two.
    future = c.submit(bytes, 1000, key="y")
    await wait(future)
    await async_poll_for(lambda: len(s.tasks["y"].who_has) == 2, 10)
    await c.unregister_scheduler_plugin("marsched")
    s.extensions["amm"].run_once()
    await async_poll_for(lambda: len(s.tasks["y"].who_has) == 1, 10)
    await c.register_plugin(protecting())


@protecting_cluster(dear=5.0)
async def test_cheap_results_are_not_copied(c, s, a, b):
    await wait(c.submit(bytes, 1000, key="x"))
    s.plugins["marsched"]._failover._protection._look()
    assert check(s)["protected"] == 0


@protecting_cluster(share=1e-12)
async def test_the_budget_is_not_exceeded(c, s, a, b):
    future = c.submit(bytes, 1000, key="x")
    await wait(future)
    s.plugins["marsched"]._failover._protection._look()
    assert check(s)["protected"] == 0


def read(*parts: Any, gate: str | None = None) -> int:
    """Have a result; with a gate not before that event is set."""
    if gate is not None:
        Event(gate).wait()
    return 1


def kept_by(s: Scheduler) -> set[Any]:
    return {ts.key for ts in s.plugins["marsched"]._failover._protection._kept}


@protecting_cluster(dear=10.0)
async def test_a_result_that_becomes_expensive_as_its_inputs_are_released_is_copied(c, s, a, b):
    """Something else reads the first as long as the gate is shut."""
    protection = s.plugins["marsched"]._failover._protection
    first = c.submit(read, key="first", workers=[a.address])
    between = c.submit(read, first, key="between", workers=[a.address])
    end = c.submit(read, between, key="end", workers=[a.address])
    last = c.submit(read, first, key="last", gate="go", workers=[b.address])
    await wait(end)
    del first, between
    await async_poll_for(lambda: s.tasks["between"].state == "released", 5)
    protection._durations = {"first": 9.0, "between": 1.0, "end": 1.0, "last": 0.0}
    protection._look()
    assert check(s)["protected"] == 0
    await Event("go").set()
    await last
    await async_poll_for(lambda: len(s.tasks["end"].who_has) == 2, 10)
    assert kept_by(s) == {"end"}


@protecting_cluster()
async def test_a_result_is_copied_once_the_budget_allows(c, s, a, b):
    protection = s.plugins["marsched"]._failover._protection
    x, y = c.submit(bytes, 1000, key="x"), c.submit(bytes, 1000, key="y")
    await wait([x, y])
    memory = sum(ws.memory_limit for ws in s.workers.values())
    protection.share = 1.5 * s.tasks["x"].nbytes / memory  # for one of them
    await async_poll_for(lambda: kept_by(s), 10)
    (key,) = kept_by(s)
    (other,) = {"x", "y"} - {key}
    protection._look()
    assert kept_by(s) == {key}
    (x if key == "x" else y).release()
    await async_poll_for(lambda: kept_by(s) == {other}, 10)
    await async_poll_for(lambda: len(s.tasks[other].who_has) == 2, 10)
    assert check(s)["protected"] == 2


@protecting_cluster()
async def test_a_lost_copy_is_replaced(c, s, a, b):
    future = c.submit(bytes, 1000, key="x")
    await wait(future)
    ts = s.tasks["x"]
    await async_poll_for(lambda: len(ts.who_has) == 2, 10)
    await b.close()
    await async_poll_for(lambda: len(ts.who_has) == 1, 10)
    assert not kept_by(s)
    s.plugins["marsched"]._failover._protection._look()  # there is nobody to hold another
    async with Worker(s.address) as another:
        await async_poll_for(lambda: len(ts.who_has) == 2, 10)
        assert kept_by(s) == {"x"}
        assert another.address in {ws.address for ws in ts.who_has}
        assert check(s)["protected"] == 2


@planned_cluster(TWO_WORKERS)
async def test_it_is_off_by_default(c, s, a, b):
    assert s.plugins["marsched"]._failover._protection is None
    assert replica_removal.misfits(s) == protection.misfits(s) == []


def run_again(plugin: MarsSchedulerPlugin, **options: Any) -> tuple[float, int]:
    """Kill the worker that holds the end of the line; return the makespan, and what ran again."""
    found = []
    for worker in (0, 1):
        report = simulate(
            LINE.collections(),
            costs=LINE.costs(),
            policy=plugin,
            workers=2,
            threads=1,
            hosts=2,
            noise=0.0,
            timeline=False,
            isolated=False,
            validate=True,
            faults=[(60.0, "kill", worker), (61.0, "join", worker)],
            **options,
        )
        recoveries = report.plugin["recoveries"]
        found.append((report.makespan, recoveries["computed_again"]))
        assert report.plugin["exceptions"] == {}
    return max(found, key=lambda each: each[1])


def test_simulated_losses_cause_less_recomputation(monkeypatch):
    without, again = run_again(MarsSchedulerPlugin(fusion="off"))
    assert again == 4
    monkeypatch.setattr(protection, "EXPENSIVE", 25.0)
    monkeypatch.setattr(protection, "_SHARE", 0.5)
    with_it, spared = run_again(protecting())
    assert spared == 0
    assert with_it < without
