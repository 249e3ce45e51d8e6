"""Stragglers run a second time, and the first result wins."""

import threading
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.core import flatten
from distributed.utils_test import async_poll_for

from dask_marsched.config import Settings
from dask_marsched.host.scheduler import speculative_execution
from dask_marsched.host.scheduler.speculative_execution import may_run_twice
from dask_marsched.policies import stragglers
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from dask_marsched.simulation import simulate
from dask_marsched.simulation.costs.costs import Costs
from tests.harness import check, planned_cluster, plugin_of

TWO_WORKERS = [("127.0.0.1", 1)] * 2
#: Nobody else moves anything.
CONFIG = {"distributed.scheduler.work-stealing": False}
#: For each run of the straggler, in their order, what it waits for.
GATES: list[threading.Event] = []
STARTED: list[int] = []


def impatient() -> MarsSchedulerPlugin:
    return MarsSchedulerPlugin(settings=Settings(second_runs=True))


@pytest.fixture(autouse=True)
def impatience(monkeypatch):
    monkeypatch.setattr(stragglers, "_FACTOR", 2.0)
    monkeypatch.setattr(stragglers, "_LEAST_SECONDS", 0.1)


@pytest.fixture(autouse=True)
def gates():
    GATES[:] = [threading.Event(), threading.Event()]
    STARTED.clear()
    yield
    for gate in GATES:
        gate.set()


def part(i: int) -> int:
    if i == 5:
        number = len(STARTED)
        STARTED.append(number)
        GATES[number].wait(20)
    return i


async def parts(c: Any) -> list[Any]:
    """Six parts of a collection. The last one waits, and by then the others have told how long
    one takes: sent together, another one may come to lie behind it.
    """
    with dask.annotate(pure=True):
        futures = [c.submit(part, i, key=("part-1", i)) for i in range(5)]
        await c.gather(futures)
        return [*futures, c.submit(part, 5, key=("part-1", 5))]


async def twice(s: Any) -> tuple[Any, Any]:
    """Wait until the straggler runs on both workers; return the first and the second."""
    await async_poll_for(lambda: len(STARTED) == 2, 10)
    first = s.tasks["part-1", 5].processing_on
    second = next(ws for ws in s.workers.values() if ws is not first)
    return first, second


def by_address(ws: Any, *workers: Any) -> Any:
    return next(worker for worker in workers if worker.address == ws.address)


async def gone(worker: Any) -> None:
    """Wait until a worker does not know the straggler any more."""
    await async_poll_for(lambda: ("part-1", 5) not in worker.state.tasks, 10)


@planned_cluster(TWO_WORKERS, plugin=impatient, config=CONFIG)
async def test_the_second_run_is_first(c, s, a, b):
    futures = await parts(c)
    first, second = await twice(s)
    GATES[1].set()
    assert await c.gather(futures) == list(range(6))
    assert s.tasks["part-1", 5].who_has == {second}
    assert (check(s)["second_runs"], check(s)["second_runs_won"]) == (1, 1)
    assert not first.processing
    assert not second.processing
    GATES[0].set()
    await gone(by_address(first, a, b))
    # Both workers go on.
    assert await c.gather(c.map(abs, [-1, -2, -3])) == [1, 2, 3]
    events = s.get_events("marsched-failover")
    (event,) = [e for _, e in events if e["action"] == "second-run"]
    assert (event["worker"], event["second"]) == (first.address, second.address)


@planned_cluster(TWO_WORKERS, plugin=impatient, config=CONFIG)
async def test_a_task_that_nobody_can_run_hinders_no_second_run(c, s, a, b):
    stuck = c.submit(abs, -1, resources={"GPU": 1})
    await async_poll_for(lambda: s.unrunnable, 10)
    futures = await parts(c)
    await twice(s)
    GATES[1].set()
    assert await c.gather(futures) == list(range(6))
    GATES[0].set()
    await stuck.cancel()


@planned_cluster(TWO_WORKERS, plugin=impatient, config=CONFIG)
async def test_the_first_run_is_first(c, s, a, b):
    futures = await parts(c)
    first, second = await twice(s)
    GATES[0].set()
    assert await c.gather(futures) == list(range(6))
    assert s.tasks["part-1", 5].who_has == {first}
    GATES[1].set()
    await gone(by_address(second, a, b))
    assert (check(s)["second_runs"], check(s)["second_runs_won"]) == (1, 0)
    assert await c.gather(c.map(abs, [-1, -2, -3])) == [1, 2, 3]


def part_of(i: int, _: Any) -> int:
    return part(i)


@planned_cluster(TWO_WORKERS, plugin=impatient, config=CONFIG)
async def test_the_second_worker_keeps_the_inputs(c, s, a, b):
    """Nobody else reads them, so that a copy elsewhere than on the first looks superfluous."""
    with dask.annotate(pure=True):
        await c.gather([c.submit(part_of, i, None, key=("part-1", i)) for i in range(5)])
        source = c.submit(np.ones, 20_000, key="source")
        straggler = c.submit(part_of, 5, source, key=("part-1", 5))
    del source
    _, second = await twice(s)
    await async_poll_for(lambda: len(s.tasks["source"].who_has) == 2, 10)
    assert not s.tasks["source"].who_wants
    GATES[1].set()
    assert await straggler == 5
    assert s.tasks["part-1", 5].who_has == {second}
    GATES[0].set()


@pytest.mark.extended
@pytest.mark.parametrize("which", ["first", "second"])
@planned_cluster(TWO_WORKERS, plugin=impatient, config=CONFIG)
async def test_one_of_the_two_workers_is_removed(c, s, a, b, which):
    futures = await parts(c)
    first, second = await twice(s)
    for gate in GATES:
        gate.set()
    GATES.extend([GATES[0]] * 2)  # it may run a third time, even before the worker has closed
    await by_address(first if which == "first" else second, a, b).close()
    assert await c.gather(futures) == list(range(6))


@planned_cluster(TWO_WORKERS, plugin=impatient, config=CONFIG)
async def test_the_operand_is_cancelled(c, s, a, b):
    futures = await parts(c)
    await twice(s)
    await c.cancel(futures[5])
    for gate in GATES:
        gate.set()
    await gone(a)
    await gone(b)
    assert await c.gather(futures[:5]) == list(range(5))


@planned_cluster(TWO_WORKERS, plugin=impatient, config=CONFIG)
async def test_tasks_not_annotated_as_pure_run_once(c, s, a, b):
    futures = [c.submit(part, i, key=("part-6", i)) for i in range(6)]
    await async_poll_for(lambda: len(STARTED) == 1, 10)
    assert not may_run_twice(s.tasks["part-6", 5])
    GATES[0].set()
    assert await c.gather(futures) == list(range(6))
    with dask.annotate(pure=True):
        future = c.submit(part, 1, key="part-7")
    await future
    assert may_run_twice(s.tasks["part-7"])
    with dask.annotate(pure=False):
        other = c.submit(abs, 1, key="abs-8")
    await other
    assert not may_run_twice(s.tasks["abs-8"])
    third = c.submit(abs, 1, key="abs-9")
    await third
    assert may_run_twice(s.tasks["abs-9"])
    assert check(s)["second_runs"] == 0


@planned_cluster(TWO_WORKERS)
async def test_it_is_off_by_default(c, s, a, b):
    assert not hasattr(vars(s), "stimulus_task_finished")
    assert plugin_of(s)._failover._second_runs is None
    assert speculative_execution.misfits(s) == []


def test_simulated_slow_workers_delay_less():
    """One of four workers gets twenty times slower in the middle of 64 seconds of work."""
    x = da.ones((64, 64), chunks=8) + 1
    keys = list(flatten(x.__dask_keys__()))
    costs = Costs(dict.fromkeys(keys, 1000), dict.fromkeys(keys, 1.0))
    seconds = {}
    for on in (False, True):
        plugin = MarsSchedulerPlugin(settings=Settings(second_runs=on))
        report = simulate(
            x,
            workers=4,
            policy=plugin,
            faults=[(8.0, "slow", 0, 20.0)],
            costs=costs,
            noise=0.0,
            timeline=False,
            isolated=False,
            validate=True,
        )
        seconds[on] = report.makespan
    assert seconds[True] < 0.8 * seconds[False]
