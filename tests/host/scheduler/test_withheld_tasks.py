"""A worker may have a waiting task, unless its running tasks will make others ready."""

from __future__ import annotations

from typing import Any

from dask.delayed import Delayed, delayed
from distributed import Event, Scheduler, Worker
from distributed.utils_test import async_poll_for, inc

from dask_marsched.host.scheduler import snapshot
from tests.harness import planned_cluster

ONE_WORKER = [("127.0.0.1", 1)]


def gated(i: int, gate: str) -> int:
    Event(gate).wait()
    return i


def chains(n: int) -> list[Delayed]:
    """Return n tasks, each with a reader of its own."""
    return [
        delayed(inc)(delayed(gated)(i, "go", dask_key_name=f"root-{i}"), dask_key_name=f"inc-{i}")
        for i in range(n)
    ]


def total(n: int) -> Delayed:
    """Return a task that reads n others."""
    return delayed(sum)(
        [delayed(gated)(i, "go", dask_key_name=f"root-{i}") for i in range(n)],
        dask_key_name="total",
    )


async def first_runs(s: Scheduler, worker: Worker) -> Any:
    await async_poll_for(lambda: worker.state.executing_count == 1, 10)
    return s.workers[worker.address]


@planned_cluster(ONE_WORKER)
async def test_a_task_waits_if_nothing_becomes_ready(c, s, a):
    future = c.compute(total(6))
    ws = await first_runs(s, a)
    assert len(ws.processing) == 2
    assert not snapshot.releases_work(ws)
    await Event("go").set()
    assert await future == 15


@planned_cluster(ONE_WORKER)
async def test_no_task_waits_if_a_running_one_has_a_ready_reader(c, s, a):
    futures = c.compute(chains(6))
    ws = await first_runs(s, a)
    assert snapshot.releases_work(ws)
    assert len(ws.processing) == 1
    await Event("go").set()
    assert await c.gather(futures) == [1, 2, 3, 4, 5, 6]


@planned_cluster(ONE_WORKER)
async def test_the_last_missing_input_releases_a_task(c, s, a):
    future = c.compute(total(2))
    ws = await first_runs(s, a)
    assert len(ws.processing) == 2
    assert snapshot.releases_work(ws)
    await Event("go").set()
    assert await future == 1


@planned_cluster(ONE_WORKER)
async def test_a_task_with_many_readers_is_assumed_to_release_one(c, s, a):
    root = delayed(gated)(1, "go", dask_key_name="root")
    other = delayed(gated)(2, "later", dask_key_name="other")
    future = c.compute(
        delayed(sum)([delayed(pow)(root, other, dask_key_name=f"r{i}") for i in range(40)])
    )
    ws = await first_runs(s, a)
    assert snapshot.releases_work(ws)
    await Event("go").set()
    await Event("later").set()
    assert await future == 40
