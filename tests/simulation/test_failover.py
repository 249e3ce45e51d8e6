"""What a loss makes a scheduler compute again, in the twin: as much as is needed, no more.

``MARSCHED_EXAMPLES=2000 pytest -s`` tries more graphs, and prints the totals.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from distributed.diagnostics.plugin import SchedulerPlugin
from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.host.scheduler.snapshot import topological
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from dask_marsched.simulation import simulate
from tests.simulation.test_invariants import EXAMPLES, Job, faults, jobs, many

#: By policy: losses of workers, operands computed again, operands that had to be.
TOTALS: dict[str, Counter[str]] = {"default": Counter(), "stock": Counter()}


class Watcher(SchedulerPlugin):
    """Notes what is computed again, and what had to be, by the whole graph after each loss."""

    name = "watcher"

    def __init__(self) -> None:
        self.again: set[Any] = set()
        self.needed: set[Any] = set()
        self.saved: set[Any] = set()
        self.losses = 0

    async def start(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        ts = self.scheduler.tasks[key]
        if finish == "processing" and ts.nbytes >= 0:
            self.again.add(key)
        elif start == "waiting" and finish in ("memory", "released"):
            self.saved.add(key)

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        self.losses += 1
        needed: set[Any] = set()
        for ts in reversed(topological(list(scheduler.tasks.values()))):
            if not ts.who_has and (ts.who_wants or not needed.isdisjoint(ts.dependents)):
                needed.add(ts)
        self.needed.update(ts.key for ts in needed if ts.nbytes >= 0)


class WatchedMars(MarsSchedulerPlugin):
    """The plugin, with a watcher beside it."""

    async def start(self, scheduler: Any) -> None:
        await super().start(scheduler)
        self.watcher = Watcher()
        await self.watcher.start(scheduler)
        scheduler.add_plugin(self.watcher)


def watched(job: Job, policy: str, **options: Any) -> tuple[Watcher, dict[str, Any]]:
    plugin: Any = WatchedMars(fusion="off") if policy == "default" else Watcher()
    report = simulate(
        job.collections(),
        costs=job.costs(),
        policy=plugin,
        isolated=False,
        validate=True,
        noise=0.0,
        timeline=False,
        **options,
    )
    watcher = plugin.watcher if policy == "default" else plugin
    return watcher, report.plugin


@pytest.mark.extended
@pytest.mark.parametrize("policy", ["default", "stock"])
@many
@given(data=st.data(), job=jobs(), workers=st.integers(2, 6), threads=st.sampled_from([1, 2]))
def test_no_more_is_computed_again_than_the_results_need(
    policy: str, data: st.DataObject, job: Job, workers: int, threads: int
) -> None:
    befalls = data.draw(faults(workers, ("kill", "kill", "join")))
    found, report = watched(job, policy, workers=workers, threads=threads, faults=befalls)
    TOTALS[policy].update(
        losses=found.losses,
        again=len(found.again),
        needed=len(found.needed),
        excess=len(found.again - found.needed),
    )
    assert found.again <= found.needed
    # Less only where a result that was under way made it unnecessary.
    assert found.needed - found.again <= found.saved
    if policy == "default":
        recoveries = report["recoveries"]
        assert recoveries["excess"] == 0
        assert report["exceptions"] == {}


def test_the_examples_lose_something() -> None:
    print(TOTALS)
    for found in TOTALS.values():
        if found:  # it has run
            assert min(found["losses"], found["again"], found["needed"]) >= EXAMPLES // 4


def test_what_is_reported_of_a_loss() -> None:
    """Three sources, their sum, and what follows; the worker with the sum dies."""
    job = Job(((), (), (), (0, 1, 2), (3,)), (0.1,) * 4 + (5.0,), (1000,) * 5)
    _, report = watched(job, "default", workers=2, threads=1, faults=[(1.0, "kill", 0)])
    (first,) = report["recoveries"]["last"]
    if not first["lost"]:  # the other one had it
        _, report = watched(job, "default", workers=2, threads=1, faults=[(1.0, "kill", 1)])
        (first,) = report["recoveries"]["last"]
    assert (first["lost"], first["again"], first["again_lost"], first["interrupted"]) == (
        1,
        4,
        1,
        1,
    )
    assert first["why"]["task-3"] == "task-4 reads it"
    assert first["seconds"] > 5
    assert report["recoveries"]["recovered"] == 1
