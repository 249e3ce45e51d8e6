"""If the scheduler is the bottleneck, no more tasks are sent than keep it busy."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from dask.delayed import delayed
from distributed import Event
from distributed.utils_test import async_poll_for

from dask_marsched.policies.dispatch_pace import ROUND_TRIP, SCHEDULER_TIME, SURPLUS, DispatchPace
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from dask_marsched.scheduling import dispatch_of_withheld
from dask_marsched.simulation import Costs, SimulationReport, simulate
from tests.harness import planned_cluster

WORKERS = 100
#: Seconds for an operand with which the scheduler bounds nothing.
FREE = 1e-9


def trees(seconds: float, scheduler_time: float, threads: int = 1) -> SimulationReport:
    """Simulate 200 pairs of short tasks, each pair read by a third task."""
    names = [f"{kind}-{i}" for i in range(200) for kind in ("a", "b", "sum")]
    pairs = [
        delayed(max)(
            delayed(max)(i, dask_key_name=f"a-{i}"),
            delayed(max)(i, dask_key_name=f"b-{i}"),
            dask_key_name=f"sum-{i}",
        )
        for i in range(200)
    ]
    costs = Costs(dict.fromkeys(names, 2**20), dict.fromkeys(names, seconds))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch_of_withheld, "DispatchPace", partial(DispatchPace, scheduler_time))
        return simulate(
            pairs,
            workers=WORKERS // threads,
            threads=threads,
            costs=costs,
            isolated=False,
        )


def at_once(report: SimulationReport) -> int:
    """Return how many tasks ran at a time, at most."""
    assert report.timeline is not None
    tasks = report.timeline.tasks.rows
    times = np.concatenate([tasks["start"], tasks["stop"]])
    steps = np.repeat([1, -1], len(tasks["start"]))
    return int(steps[np.lexsort((steps, times))].cumsum().max())


def test_short_operands_do_not_go_to_all_workers() -> None:
    bound, free = trees(0.001, SCHEDULER_TIME), trees(0.001, FREE)
    assert at_once(bound) <= SURPLUS * (ROUND_TRIP + 0.001) / SCHEDULER_TIME
    assert bound.peak_memory < free.peak_memory
    assert bound.makespan < 1.2 * free.makespan


def test_short_operands_do_not_go_to_all_threads() -> None:
    bound, free = trees(0.001, SCHEDULER_TIME, threads=4), trees(0.001, FREE, threads=4)
    assert at_once(bound) <= SURPLUS * (ROUND_TRIP + 0.001) / SCHEDULER_TIME
    assert bound.peak_memory < free.peak_memory


def test_long_operands_go_to_all_workers() -> None:
    bound, free = trees(1.0, SCHEDULER_TIME), trees(1.0, FREE)
    assert at_once(bound) == WORKERS
    assert bound.makespan < 1.02 * free.makespan


def block(event: str, x: int) -> int:
    Event(event).wait()
    return x


def slow_scheduler(plugin: MarsSchedulerPlugin) -> None:
    assert plugin._engine is not None
    plugin._engine.dispatcher.pace.scheduler_time = 0.01


@planned_cluster([("127.0.0.1", 2)])
async def test_after_a_restart_nothing_is_known(c: Any, s: Any, a: Any) -> None:
    dispatcher = s.plugins["marsched"]._engine.dispatcher
    assert sum(await c.gather(c.map(abs, range(50)))) == sum(range(50))
    assert dispatcher.pace.most(0.0) != DispatchPace().most(0.0)
    dispatcher.clear()
    assert dispatcher.pace.most(0.0) == DispatchPace().most(0.0)
    assert not dispatcher.free_slots.finished


@pytest.mark.parametrize("long", [False, True])
def test_operands_that_turn_out_to_be_long_run_on_all_threads(long: bool) -> None:
    @planned_cluster([("127.0.0.1", 8)], tune=slow_scheduler)
    async def test(c: Any, s: Any, a: Any) -> None:
        if long:  # where the last ones were short
            assert sum(await c.gather(c.map(abs, range(50)))) == sum(range(50))
        futures = c.map(block, ["go"] * 24, range(24))
        # Nothing ends, and no message comes; only time tells.
        await async_poll_for(lambda: a.state.executing_count == 8, 5)
        await Event("go").set()
        assert await c.gather(futures) == list(range(24))

    test()
