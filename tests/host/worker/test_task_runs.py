"""Tiny tasks run in a row: each keeps its state, error, retry, cancellation and place."""

import asyncio
import math
import os
import random
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

import dask
import pytest
from distributed import (
    Nanny,
    Reschedule,
    Worker,
    get_client,
    get_worker,
    rejoin,
    secede,
    wait,
    worker_client,
)
from distributed.utils_test import async_poll_for, captured_logger, gen_cluster, inc
from distributed.worker_state_machine import UnpauseEvent

from dask_marsched.host.batched_messages import COMPUTE, FINISHED
from dask_marsched.host.scheduler import periodic_checks
from dask_marsched.host.worker import task_runs
from dask_marsched.host.worker.plain_replies import is_plain
from dask_marsched.host.worker.task_runs import misfits
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from dask_marsched.worker_plugin import MarsWorkerPlugin
from tests.harness import planned_cluster, report_of

ONE = [("127.0.0.1", 1)]
#: What tasks do besides returning their number, by that number.
ACTS: dict[int, Callable[[], Any]] = {}
RAN: list[int] = []


def step(i: int) -> Any:
    RAN.append(i)
    return ACTS[i]() if i in ACTS else i


def hurry(i: int) -> None:
    RAN.append(i)


def keys(n: int) -> list[str]:
    return [f"step-{i}" for i in range(n)]


def runs_of(worker: Worker) -> dict[str, int]:
    plugin: Any = worker.plugins["marsched"]
    found: dict[str, int] = plugin.report()["runs"]
    return found


async def learn(c: Any, *workers: Worker, acts: dict[int, Callable[[], Any]] | None = None) -> None:
    """Let the workers learn that steps are tiny, and the scheduler that they run them in a row."""
    for worker in workers:
        await wait([c.submit(step, -1, key="step-first", workers=worker.address)])
        await async_poll_for(lambda: "step-first" not in c.futures, 5)
        await worker.heartbeat()
    ACTS.clear()
    ACTS.update(acts or {})
    RAN.clear()


class Gate:
    """Lets a task wait in its thread; `reached` is set once it does."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.reached.set()
        assert self.open.wait(20)
        return "gate"


async def begin(c: Any, worker: Worker, n: int) -> tuple[Gate, list[Any]]:
    """Run `n` steps; return when the fourth waits at the gate that is returned with the futures."""
    gate = Gate()
    await learn(c, worker, acts={3: gate})
    futures = c.map(step, range(n), key=keys(n))
    await asyncio.to_thread(gate.reached.wait)
    return gate, futures


@planned_cluster([("127.0.0.1", 1)] * 2)
async def test_inputs_are_fetched_when_the_state_machine_hears_of_a_run(c, s, a, b, monkeypatch):
    x = c.submit(bytes, 10, key="x", workers=b.address)
    await wait([x])
    state = type(a.state)
    monkeypatch.setattr(state, "_should_throttle_incoming_transfers", lambda self: True)
    reader = c.submit(len, x, workers=a.address)
    await async_poll_for(lambda: "x" in a.state.tasks, 5)
    monkeypatch.setattr(task_runs, "_REPORT_EVERY", 60.0)  # it hears of the run with the event
    gate = Gate()
    await learn(c, a, acts={3: gate})
    futures = c.map(step, range(20), key=keys(20), workers=a.address)
    await asyncio.to_thread(gate.reached.wait)
    assert a.state.tasks["x"].state == "fetch"
    assert a.state.tasks["step-3"].state == "ready"  # as far as it knows
    monkeypatch.undo()
    a.handle_stimulus(UnpauseEvent(stimulus_id="there is room again"))
    await async_poll_for(lambda: "x" in a.data, 5)
    gate.open.set()
    assert await reader == 10
    await wait(futures)


@planned_cluster(ONE)
async def test_many_travel_and_run_together(c, s, a):
    await learn(c, a)
    asked = []
    for server, operation in ((s, FINISHED), (a, COMPUTE)):

        def note(handler=server.stream_handlers[operation], operation=operation, **message):
            asked.append(operation)
            return handler(**message)

        server.stream_handlers[operation] = note
    futures = c.map(step, range(200), key=keys(200))
    assert await c.gather(futures) == list(range(200))
    assert list(range(200)) == RAN
    assert runs_of(a)["tasks"] >= 199
    assert runs_of(a)["runs"] <= 20
    assert set(asked) == {COMPUTE, FINISHED}
    assert len(asked) < 60
    assert s.task_prefixes["step"].duration_average >= 0
    assert any(key[:1] == ("execute",) and key[2] == "step" for key in a.digests_total)


def fail() -> None:
    raise ValueError("in the middle")


class ExecutingWorker(Worker):
    async def execute(self, key: Any, *, stimulus_id: str) -> Any:
        EXECUTED.append(key)
        return await super().execute(key, stimulus_id=stimulus_id)


EXECUTED: list[Any] = []


@planned_cluster(ONE, Worker=ExecutingWorker)
async def test_a_worker_s_own_execute_is_called_for_each_task(c, s, a):
    await learn(c, a)
    EXECUTED.clear()
    assert await c.gather(c.map(step, range(40), key=keys(40))) == list(range(40))
    assert keys(40) == EXECUTED
    assert a.plugins["marsched"].report()["reasons"]["runs"] == (
        "the worker has an `execute` of its own"
    )


@planned_cluster(ONE)
async def test_an_error_is_that_of_one_task(c, s, a):
    await learn(c, a, acts={20: fail})
    futures = c.map(step, range(40), key=keys(40))
    await wait(futures)
    assert [f.key for f in futures if f.status == "error"] == ["step-20"]
    with pytest.raises(ValueError, match="in the middle"):
        await futures[20]
    assert list(range(40)) == RAN


class Unshown:
    def __repr__(self) -> str:
        raise KeyError("it has no name yet")


def step_with(i: int, thing: Unshown) -> Any:
    return step(i)


@gen_cluster(client=True, nthreads=ONE)
async def test_an_error_of_a_task_that_cannot_be_shown(c, s, a):
    """Stock Dask lets it fail by the error of its `repr`, which the log of failures has."""
    await c.register_plugin(MarsSchedulerPlugin())
    await wait(c.submit(step_with, -1, Unshown(), key="step-first"))
    ACTS.clear()
    ACTS.update({20: fail})
    futures = c.map(step_with, range(40), thing=Unshown(), key=keys(40))
    await wait(futures)
    assert [f.key for f in futures if f.status == "error"] == ["step-20"]
    with pytest.raises(KeyError, match="no name"):
        await futures[20]
    assert runs_of(a)["tasks"] > 20


def once(call: Callable[[], Any]) -> Callable[[], Any]:
    """Return a call that does something the first time only."""
    left = [call]
    return lambda: left.pop()() if left else "again"


def reschedule() -> None:
    raise Reschedule


@pytest.mark.parametrize(("call", "retries"), [(fail, 1), (reschedule, 0)])
def test_it_runs_again(call, retries):
    @planned_cluster(ONE)
    async def test(c, s, a):
        await learn(c, a, acts={20: once(call)})
        futures = c.map(step, range(40), key=keys(40), retries=retries)
        await wait(futures)
        assert await futures[20] == "again"
        assert sorted(RAN) == sorted([*range(40), 20])

    test()


@planned_cluster(ONE)
async def test_what_was_not_begun_can_be_cancelled(c, s, a):
    gate, futures = await begin(c, a, 40)
    # Reported although a thread is still at work.
    await wait(futures[:3])
    assert [ts.state for ts in a.state.executing] == ["executing"]
    await c.cancel(futures[10:20])
    await async_poll_for(lambda: "step-10" not in a.state.tasks, 5)
    gate.open.set()
    await wait(futures[20:])
    assert [*range(10), *range(20, 40)] == RAN


@planned_cluster(ONE)
async def test_a_more_urgent_task_runs_next(c, s, a):
    gate, futures = await begin(c, a, 20)
    urgent = c.submit(hurry, 99, key="urgent", priority=10)
    await async_poll_for(lambda: "urgent" in a.state.tasks, 5)
    gate.open.set()
    await wait([*futures, urgent])
    assert [*range(4), 99, *range(4, 20)] == RAN


@planned_cluster([("127.0.0.1", 1)] * 2)
async def test_a_slow_task_does_not_hold_up_those_behind_it(c, s, a, b):
    gate = Gate()
    await learn(c, a, b, acts={3: gate})
    futures = c.map(step, range(100), key=keys(100))
    await wait(futures[:3] + futures[4:])
    assert not gate.open.is_set()
    gate.open.set()
    assert await futures[3] == "gate"
    assert sorted(RAN) == list(range(100))
    assert report_of(s)["recalled_operands"] > 0


def in_client() -> Any:
    with worker_client() as client:
        return client.submit(inc, 1).result()


def seceding() -> Any:
    secede()
    return get_client().submit(inc, 2).result()


def rejoining() -> Any:
    secede()
    found = get_client().submit(inc, 3).result()
    rejoin()
    return found


@planned_cluster(ONE)
async def test_tasks_that_secede(c, s, a):
    await learn(c, a, acts={5: in_client, 15: seceding, 25: rejoining})
    futures = c.map(step, range(40), key=keys(40))
    found = await c.gather(futures)
    assert [found[i] for i in (5, 15, 25)] == [2, 3, 4]
    assert sorted(RAN) == list(range(40))
    assert a.state.executing_count == 0
    assert len(a.executors["default"]._threads) <= 2  # one may have to leave after a `rejoin`


@planned_cluster(ONE)
async def test_each_knows_its_own_key(c, s, a):
    await learn(c, a, acts={i: lambda: get_worker().get_current_task() for i in range(20)})
    futures = c.map(step, range(20), key=keys(20))
    assert await c.gather(futures) == keys(20)


@planned_cluster(ONE)
async def test_large_results_end_a_run(c, s, a):
    await learn(c, a, acts={i: lambda: bytes(10**6) for i in range(30)})
    futures = c.map(step, range(30), key=keys(30))
    assert sum(map(len, await c.gather(futures))) == 30 * 10**6
    assert runs_of(a)["tasks"] < 20  # their kind is no longer tiny


@planned_cluster(ONE)
async def test_inputs_are_read(c, s, a):
    await learn(c, a)
    firsts = c.map(step, range(30), key=keys(30))
    await wait(firsts)
    seconds = c.map(step, firsts, key=[f"step-{i}-b" for i in range(30)])
    assert await c.gather(seconds) == list(range(30))
    assert runs_of(a)["tasks"] >= 50


def follow(before: Any) -> Any:
    return before


@planned_cluster(ONE)
async def test_inputs_may_be_none(c, s, a):
    await learn(c, a)
    firsts = c.map(hurry, range(30), key=keys(30))
    await wait(firsts)
    before = runs_of(a)["tasks"]
    seconds = c.map(follow, firsts, key=[f"step-{i}-b" for i in range(30)])
    assert await c.gather(seconds) == [None] * 30
    assert runs_of(a)["tasks"] - before >= 20


@planned_cluster([("127.0.0.1", 2)])
async def test_two_threads_take_from_the_same_queue(c, s, a):
    gate = Gate()
    await learn(c, a, acts={3: gate})
    futures = c.map(step, range(100), key=keys(100))
    await wait(futures[:3] + futures[4:])
    gate.open.set()
    await futures[3]
    assert sorted(RAN) == list(range(100))


def spin() -> None:
    while True:
        pass


@planned_cluster(ONE)
async def test_a_running_one_is_interrupted(c, s, a):
    begun = threading.Event()
    await learn(c, a, acts={3: lambda: (begun.set(), spin())})
    futures = c.map(step, range(10), key=keys(10))
    await asyncio.to_thread(begun.wait)
    plugin: Any = a.plugins["marsched"]
    await async_poll_for(lambda: "step-3" in plugin._parts["interrupts"]._running, 5)
    s.client_releases_keys(keys=["step-3"], client=c.id, stimulus_id="cancel-key-interrupt-test")
    await wait(futures[4:])
    assert list(range(10)) == RAN
    assert plugin.report()["interrupts"]["interrupted"] == 1


@planned_cluster(ONE, config={"distributed.worker.memory.pause": False})  # paused by hand
async def test_a_paused_worker_begins_nothing(c, s, a):
    gate, futures = await begin(c, a, 20)
    a.status = type(a.status).paused
    gate.open.set()
    await wait(futures[:4])
    assert list(range(4)) == RAN
    a.status = type(a.status).running
    await wait(futures)
    assert list(range(20)) == RAN


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(6))
def test_a_storm(seed):
    """Whatever tasks do and clients ask, each ends as its code says, or is cancelled."""

    @planned_cluster([("127.0.0.1", 2), ("127.0.0.1", 1)], timeout=60)
    async def test(c, s, a, b):
        rng = random.Random(seed)
        acts: dict[int, Callable[[], Any]] = {}
        for i in rng.sample(range(600), 120):
            acts[i] = rng.choice(
                [fail, once(reschedule), seceding, in_client, lambda: sleep(0.03), lambda: bytes(9)]
            )
        await learn(c, a, b, acts=acts)
        futures, cancelled = [], set()
        for start in range(0, 600, 100):
            numbers = range(start, start + 100)
            names = [f"step-{i}" for i in numbers]
            futures += c.map(step, numbers, key=names, priority=rng.choice([0, 0, 5]))
            await wait([rng.choice(futures[start:])])
            some = rng.sample(futures, 10)
            cancelled |= {f.key for f in some}
            await c.cancel(some)
        await wait([f for f in futures if f.key not in cancelled])
        for i, future in enumerate(futures):
            if future.key in cancelled:
                assert future.status == "cancelled"
            elif acts.get(i) is fail:
                assert future.status == "error"
            else:
                assert future.status == "finished"
                assert i in acts or await future == i
        del futures, future, some
        await async_poll_for(lambda: not s.tasks and not a.state.tasks and not b.state.tasks, 20)
        assert not a.state.executing
        assert not b.state.executing
        assert not any(worker.active_keys for worker in (a, b))

    test()


def logged(i: int, path: str, fatal: bool = False) -> int:
    """Note that a task runs; kill its worker the first time that it is `fatal`."""
    log = Path(path) / str(i)
    first = not log.exists()
    with log.open("a") as file:
        file.write("x")
    if fatal and first:
        os.kill(os.getpid(), signal.SIGKILL)
    return i


@pytest.mark.extended
@planned_cluster([("127.0.0.1", 1)] * 2, Worker=Nanny, timeout=60)
async def test_a_worker_is_killed_in_a_run(c, s, a, b):
    with tempfile.TemporaryDirectory() as path:
        await c.gather(c.map(logged, range(-20, 0), [path] * 20))
        pids = await c.run(os.getpid)
        fatal = [i == 30 for i in range(100)]
        futures = c.map(logged, range(100), [path] * 100, fatal)
        assert await c.gather(futures) == list(range(100))
        again = [i for i in range(100) if len((Path(path) / str(i)).read_text()) > 1]
    assert 30 in again
    assert len(again) < 90  # what the other worker holds is not computed again
    assert len(set((await c.run(os.getpid)).values()) & set(pids.values())) == 1


def exits_once(i: int, path: str) -> int:
    """End the worker's process the first time that this is task 30."""
    log = Path(path) / str(i)
    if i == 30 and not log.exists():
        log.touch()
        sys.exit()
    return i


@pytest.mark.extended
@planned_cluster([("127.0.0.1", 1)] * 2, Worker=Nanny, timeout=60)
async def test_a_task_that_exits_ends_its_worker_at_once(c, s, a, b):
    with tempfile.TemporaryDirectory() as path, captured_logger("distributed.nanny") as log:
        await c.gather(c.map(exits_once, range(-20, 0), [path] * 20))
        assert await c.gather(c.map(exits_once, range(100), [path] * 100)) == list(range(100))
        await c.wait_for_workers(2)
    assert "Restarting worker" in log.getvalue()
    assert "gracefully" not in log.getvalue()
    assert "still alive" not in log.getvalue()


@pytest.mark.extended
@planned_cluster([("127.0.0.1", 1)] * 2, Worker=Nanny, timeout=60)
async def test_a_stalled_worker_gives_back_what_it_did_not_begin(c, s, a, b):
    """It cannot answer, but a second run of such tasks does no harm."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(periodic_checks, "SILENT", 2.0)
        await c.gather(c.map(inc, range(-20, 0)))
        pids = await c.run(os.getpid)
        stalled = pids[a.worker_address]
        os.kill(stalled, signal.SIGSTOP)
        try:
            with dask.annotate(pure=True):
                futures = c.map(inc, range(100))
            assert await c.gather(futures) == list(range(1, 101))
        finally:
            os.kill(stalled, signal.SIGCONT)
    assert report_of(s)["recalled_operands"] > 0


@gen_cluster(client=True, nthreads=ONE)
async def test_removed_while_at_work(c: Any, s: Any, a: Any) -> None:
    stock = type(a.state)
    await c.register_plugin(MarsSchedulerPlugin())
    assert type(a.state) is not stock
    gate, futures = await begin(c, a, 40)
    removed = asyncio.ensure_future(c.unregister_scheduler_plugin("marsched"))
    gate.open.set()
    await removed
    assert await c.gather(futures[4:]) == list(range(4, 40))
    await async_poll_for(lambda: type(a.state) is stock, 5)
    assert list(range(40)) == RAN


@planned_cluster(ONE)
async def test_a_worker_that_closes_does_not_wait_for_a_running_one(c, s, a):
    gate, _ = await begin(c, a, 4)
    closing = asyncio.ensure_future(a.close(timeout=0.1))
    done, _ = await asyncio.wait([closing], timeout=10)
    gate.open.set()
    await closing
    assert done


@gen_cluster(client=True, nthreads=ONE)
async def test_after_an_exception_of_ours_each_task_is_executed_alone(
    c: Any, s: Any, a: Any
) -> None:
    await c.register_plugin(MarsSchedulerPlugin())
    await learn(c, a)
    stock = task_runs._run_task

    def run(spec, data, state, key, *rest):
        if key == "step-5":
            raise RuntimeError("not run")
        return stock(spec, data, state, key, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_runs, "_run_task", run)
        futures = c.map(step, range(40), key=keys(40))
        await wait(futures)
    assert [f.key for f in futures if f.status == "error"] == ["step-5"]
    plugin: Any = a.plugins["marsched"]
    assert plugin.report()["runs"]["exceptions"] == {"runs": 1}
    ran = runs_of(a)["tasks"]
    assert await c.gather(c.map(step, range(40, 60), key=keys(60)[40:])) == list(range(40, 60))
    assert runs_of(a)["tasks"] == ran
    assert not a.active_keys


@gen_cluster(client=True, nthreads=ONE)
async def test_with_a_stock_scheduler(c: Any, s: Any, a: Any) -> None:
    """The worker answers as the scheduler asks: in single messages."""
    await a.plugin_add(plugin=MarsWorkerPlugin(), name="marsched")
    await learn(c, a)
    assert FINISHED not in s.stream_handlers
    assert await c.gather(c.map(step, range(40), key=keys(40))) == list(range(40))


@gen_cluster(nthreads=ONE)
async def test_misfits_are_named(s: Any, a: Any) -> None:
    assert misfits(a) == []
    del a.threads
    assert "worker has no attribute threads" in misfits(a)
    a.threads = {}


@pytest.mark.parametrize("value", [0, -(2**63), True, None, 1.5, math.inf, "text", ""])
def test_plain(value):
    assert is_plain(value)


@pytest.mark.parametrize("value", [2**63, b"x", "ä", "x" * 2000, [1], (1,), {}, 1j, object()])
def test_not_plain(value):
    assert not is_plain(value)


@planned_cluster(ONE)
async def test_plain_results_arrive_as_they_are(c, s, a):
    values = [0, True, None, 1.5, "text", 2**70, (1, "ä"), [b"x"]]
    futures = [c.submit(lambda v=v: v, key=f"value-{i}") for i, v in enumerate(values)]
    found = await c.gather(futures)
    assert [(type(v), v) for v in found] == [(type(v), v) for v in values]
