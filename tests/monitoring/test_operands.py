"""`operands`: the states of a real cluster's operands, and that they follow the table."""

import asyncio
import json

import dask
import dask.array as da
import pytest
from dask.delayed import delayed
from distributed import Event, Scheduler, wait
from distributed.utils_test import async_poll_for, gen_cluster, inc

import dask_marsched
from dask_marsched.core.operand import State, state_of
from dask_marsched.host.scheduler.operand_states import operand_history
from dask_marsched.host.worker.interrupts import ExecutionInterrupted
from tests.harness import planned_cluster


def fail(x):
    raise ZeroDivisionError(x)


def held(x, name):
    Event(name).wait()
    return x


@pytest.mark.extended
@planned_cluster([("127.0.0.1", 1)] * 3)
async def test_every_transition_of_a_real_run_is_one_of_the_table(c, s, *workers):
    """A run with failures, retries, a lost worker and a cancellation."""
    x = da.ones((40, 40), chunks=5).map_blocks(inc, dtype=float)
    total = c.compute((x - x.mean(axis=0)).sum())
    broken = c.submit(sum, [c.submit(fail, 1, retries=2, key="broken"), 1], key="reader")
    await wait([broken, total])
    again = c.compute((x + 1).sum())
    await async_poll_for(lambda: any(ts.state == "memory" for ts in s.tasks.values()), 5)
    await workers[0].close(executor_wait=False)
    assert await again == 4800
    given_up = c.submit(held, 1, "never", key="given-up")
    await async_poll_for(
        lambda: "given-up" in s.tasks and s.tasks["given-up"].state == "processing", 5
    )
    await c.cancel(given_up)
    await async_poll_for(lambda: "given-up" not in s.tasks, 5)
    await Event("never").set()
    keys = {entry.key for entry in s.transition_log}
    seen = {(entry.start, entry.finish) for entry in s.transition_log}
    assert len(keys) > 100
    assert {("processing", "erred"), ("processing", "released"), ("released", "forgotten")} <= seen
    for key in keys:
        steps = operand_history(s, key)  # raises where a transition is illegal
        if key in s.tasks:
            ts = s.tasks[key]
            assert steps[-1].state is state_of(ts.state, computed=ts.nbytes >= 0)
    assert operand_history(s, "broken")[-1].state is State.FATAL
    assert operand_history(s, "given-up")[-1].state is State.CANCELLED
    found = await dask_marsched.operands(c, key="reader")
    assert found.rows[0]["cause"] == "broken"
    assert [step["state"] for step in found.history] == ["unscheduled", "fatal"]


@gen_cluster(nthreads=[])
async def test_all_of_dasks_transitions_are_known(s):
    """Each entry of distributed's table is between states that can be translated."""
    for start, finish in Scheduler._TRANSITIONS_TABLE:
        for computed in (False, True):
            assert state_of(start, computed=computed) in State
            assert state_of(finish, computed=computed) in State


@planned_cluster([("127.0.0.1", 1)] * 2)
async def test_counts_rows_and_graphs(c, s, *workers):
    first = delayed(held)(1, "go", dask_key_name="first")
    last = delayed(inc)(first, dask_key_name="last")
    future = c.compute(last)
    other = c.submit(inc, 5, key="other")
    await other
    await async_poll_for(lambda: any(ws.executing for ws in s.workers.values()), 5)
    found = await dask_marsched.operands(c)
    assert {k: n for k, n in found.counts.items() if n} == {
        "running": 1, "unscheduled": 1, "finished": 1,
    }  # fmt: skip
    running = await dask_marsched.operands(c, state="RUNNING")
    (row,) = running.rows
    assert (row["key"], row["worker"] in s.workers, row["nbytes"]) == ("first", True, None)
    of_graph = await dask_marsched.operands(c, graph=last)
    assert sum(of_graph.counts.values()) == 2
    await Event("go").set()
    assert await future == 2
    found = await dask_marsched.operands(c, graph=0)
    assert found.counts["finished"] == 1
    assert [(g["operands"], g["ready"]) for g in found.graphs] == [(2, 1), (1, 1)]
    done = (await dask_marsched.operands(c, key="last")).rows[0]["execution"]
    assert done["worker"] in s.workers
    assert min(done[p] for p in ("waiting", "loading", "calculating", "storing")) >= 0
    assert json.loads(found.to_json())["counts"]["freed"] == 1
    assert str(found).startswith("finished 1")


def deaf(started, go):
    """Does not end when it is told to, for a while."""
    while True:
        try:
            Event(started).set()
            Event(go).wait()
        except ExecutionInterrupted:
            continue
        return 1


@planned_cluster([("127.0.0.1", 1)])
async def test_operands_being_interrupted(c, s, a):
    with dask.annotate(pure=True):
        future = c.submit(deaf, "started", "go", key="deaf")
    await Event("started").wait()
    await c.cancel(future)
    await async_poll_for(lambda: a.plugins["marsched"].interrupted() == ["deaf"], 10)
    assert (await dask_marsched.operands(c)).counts["cancelling"] == 1
    (row,) = (await dask_marsched.operands(c, state="cancelling")).rows
    assert (row["key"], row["worker"]) == ("deaf", a.address)
    assert (await dask_marsched.operands(c, key="deaf")).rows == [row]
    assert (await dask_marsched.operands(c, key="other")).rows == []
    await Event("go").set()
    await async_poll_for(lambda: not a.plugins["marsched"].interrupted(), 10)
    assert (await dask_marsched.operands(c)).counts["cancelling"] == 0


@planned_cluster([("127.0.0.1", 1)])
async def test_results_on_disk(c, s, a):
    x = c.submit(bytes, 1000, key="x")
    await wait(x)
    assert (await dask_marsched.operands(c, key="x")).rows[0]["state"] == "finished"
    a.data.evict()
    found = await dask_marsched.operands(c, key="x")
    assert found.rows[0]["state"] == "cached"
    assert found.counts["cached"] == 1


@planned_cluster([("127.0.0.1", 1)] * 2)
async def test_a_worker_that_does_not_answer(c, s, a, b, monkeypatch):
    async def silent(**message):
        await asyncio.Event().wait()

    x = c.submit(bytes, 1000, key="x", workers=[a.address])
    await wait(x)
    a.data.evict()
    b.handlers["run"] = silent
    monkeypatch.setattr("dask_marsched.host.scheduler.worker_queries._TIMEOUT", 0.5)
    assert (await dask_marsched.operands(c, key="x")).rows[0]["state"] == "cached"


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_without_the_plugin(c, s, a):
    assert await c.submit(inc, 1, key="x") == 2
    found = await dask_marsched.operands(c, key="x")
    assert found.graphs == []
    assert [step["state"] for step in found.history][:4] == [
        "unscheduled", "ready", "running", "finished",
    ]  # fmt: skip


@gen_cluster(client=True, nthreads=[])
async def test_bad_input(c, s):
    with pytest.raises(ValueError, match="there is no state 'busy'; states are unscheduled"):
        dask_marsched.operands(c, state="busy")
    with pytest.raises(TypeError, match="a graph is a number"):
        dask_marsched.operands(c, graph=object())
    with pytest.raises(TypeError, match=r"takes a distributed\.Client"):
        dask_marsched.operands("tcp://127.0.0.1")
