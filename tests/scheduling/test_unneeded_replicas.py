"""Replicas that no task needs are dropped at once, and no others."""

from __future__ import annotations

import gc
import types
from typing import Any

import dask
import pytest
from dask.delayed import Delayed, delayed
from distributed import Client, Event, Scheduler, Worker
from distributed import scheduler as scheduler_module
from distributed.core import Status
from distributed.utils import wait_for
from distributed.utils_test import async_poll_for, gen_cluster
from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.host.batched_messages import FINISHED
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from dask_marsched.scheduling.unneeded_replicas import UnneededReplicas
from tests.harness import check, our_failures, planned_cluster, plugin_of

TWO_WORKERS = [("127.0.0.1", 1)] * 2
THREE_WORKERS = [("127.0.0.1", 1)] * 3
#: The active memory manager drops copies too, if later.
CONFIG = {"distributed.scheduler.active-memory-manager.start": False}
LARGE = 100_000


def make(value: int, nbytes: int) -> bytes:
    return bytes([value]) * nbytes


def combine(*parts: bytes, gate: str | None = None) -> int:
    """Add up what it reads; with a gate not before that event is set."""
    if gate is not None:
        Event(gate).wait()
    return sum(sum(part) if isinstance(part, bytes) else part for part in parts)


def value_at(worker: Worker, name: str, value: int, nbytes: int = LARGE) -> Delayed:
    """A result that is made on one worker, or elsewhere if that one is gone."""
    with dask.annotate(workers=[worker.address], allow_other_workers=True):
        return delayed(make, pure=False)(value, nbytes, dask_key_name=name)


def joined(
    name: str, *parts: Delayed, gate: str | None = None, at: Worker | None = None
) -> Delayed:
    if at is None:
        return delayed(combine, pure=False)(*parts, gate=gate, dask_key_name=name)
    with dask.annotate(workers=[at.address], allow_other_workers=True):
        return delayed(combine, pure=False)(*parts, gate=gate, dask_key_name=name)


def submit(c: Client, *wanted: Delayed) -> list[Any]:
    # Optimising the graphs would lose the annotations.
    futures: list[Any] = c.compute(list(wanted), optimize_graph=False)
    return futures


def holders(s: Scheduler, key: str) -> set[str]:
    ts = s.tasks.get(key)
    return {ws.address for ws in ts.who_has or ()} if ts else set()


def executing(worker: Worker, key: str) -> bool:
    ts = worker.state.tasks.get(key)
    return ts is not None and ts.state == "executing"


async def runs(worker: Worker, key: str) -> None:
    await async_poll_for(lambda: executing(worker, key), 10)


async def held_by(s: Scheduler, key: str, *workers: Worker) -> None:
    """Wait until the scheduler knows that exactly these workers hold a result."""
    await async_poll_for(lambda: holders(s, key) == {w.address for w in workers}, 10)
    assert all(key in worker.data for worker in workers)


async def dropped(s: Scheduler, worker: Worker, key: str) -> None:
    await async_poll_for(lambda: worker.address not in holders(s, key), 10)
    await async_poll_for(lambda: key not in worker.data, 10)


# ---- What is dropped -------------------------------------------------------------------------


@planned_cluster(TWO_WORKERS, config=CONFIG)
async def test_the_original_is_dropped_once_the_only_reader_has_a_copy(c, s, a, b):
    x, y = value_at(a, "x", 1), value_at(b, "y", 2, 3 * LARGE)
    (future,) = submit(c, joined("z", x, y, gate="go"))
    await runs(b, "z")
    await dropped(s, a, "x")
    assert holders(s, "x") == holders(s, "y") == {b.address}
    await Event("go").set()
    assert await future == 7 * LARGE
    assert check(s)["copies_dropped"] == 1


@planned_cluster(THREE_WORKERS, config=CONFIG)
async def test_a_replica_is_dropped_once_the_last_reader_was_sent(c, s, a, b, d):
    """Three readers of x: one runs on b at once, one on d, the third is sent to b later."""
    x = value_at(a, "x", 1)
    late = joined("late", value_at(b, "seed", 1, 10), gate="later", at=b)
    futures = submit(
        c,
        joined("one", x, gate="go", at=d),
        joined("two", x, late, gate="go", at=b),
        joined("three", x, late, gate="go", at=d),
    )
    await runs(d, "one")
    await runs(b, "late")
    # Two and three wait, and might go to any worker: all copies stay.
    await held_by(s, "x", a, d)
    s.validate_state()
    await Event("later").set()
    await runs(b, "two")
    await dropped(s, a, "x")
    assert holders(s, "x") == {b.address, d.address}
    await Event("go").set()
    assert await c.gather(futures) == [LARGE, LARGE + 10, LARGE + 10]


@planned_cluster(THREE_WORKERS, config=CONFIG)
async def test_replicas_of_finished_readers_are_dropped_too(c, s, a, b, d):
    x = value_at(a, "x", 1)
    futures = submit(
        c, joined("first", x, at=b, gate="first"), joined("last", x, at=d, gate="last")
    )
    await runs(b, "first")
    await runs(d, "last")
    await dropped(s, a, "x")
    assert holders(s, "x") == {b.address, d.address}
    await Event("first").set()
    await futures[0]
    await dropped(s, b, "x")
    assert holders(s, "x") == {d.address}
    await Event("last").set()
    assert await c.gather(futures) == [LARGE, LARGE]
    assert check(s)["copies_dropped"] == 2


# ---- What stays ------------------------------------------------------------------------------


async def copied_to_both(c: Client, s: Scheduler, a: Worker, b: Worker, *also: Delayed) -> Any:
    """Start a join on b that fetches x from a; return its future."""
    x, y = value_at(a, "x", 1), value_at(b, "y", 2, 3 * LARGE)
    future, *_ = submit(c, joined("z", x, y, gate="go"), *also)
    await runs(b, "z")
    return future


async def nothing_went(s: Scheduler, future: Any, key: str, *workers: Worker) -> None:
    await held_by(s, key, *workers)
    s.validate_state()
    await Event("go").set()
    assert await future == 7 * LARGE
    assert plugin_of(s).report()["copies_dropped"] == 0


@planned_cluster(TWO_WORKERS, config=CONFIG)
async def test_all_replicas_stay_while_a_reader_waits(c, s, a, b):
    slow = joined("slow", value_at(a, "seed", 0, 10), gate="later", at=a)
    reader = joined("reader", value_at(a, "x", 1), slow)
    future = await copied_to_both(c, s, a, b, reader)
    await runs(a, "slow")
    await nothing_went(s, future, "x", a, b)
    await Event("later").set()


@planned_cluster(TWO_WORKERS, config=CONFIG)
async def test_replicas_of_results_that_a_client_holds_stay(c, s, a, b):
    future = await copied_to_both(c, s, a, b, value_at(a, "x", 1))
    await nothing_went(s, future, "x", a, b)


@planned_cluster(TWO_WORKERS, config=CONFIG)
async def test_replicas_that_both_workers_read_stay(c, s, a, b):
    future = await copied_to_both(c, s, a, b, joined("here", value_at(a, "x", 1), gate="go", at=a))
    await runs(a, "here")
    await nothing_went(s, future, "x", a, b)


@planned_cluster(TWO_WORKERS, config=CONFIG)
async def test_a_replica_that_outlives_its_process_stays(c, s, a, b):
    plugin_of(s)._engine.replicas.keepers = lambda ts: [s.workers[a.address]]
    future = await copied_to_both(c, s, a, b)
    await nothing_went(s, future, "x", a, b)


@planned_cluster(TWO_WORKERS, config=CONFIG)
async def test_of_several_keepers_the_one_on_the_readers_host_stays(c, s, a, b):
    there = types.SimpleNamespace(host="there", address=b.address)
    plugin_of(s)._engine.replicas.keepers = lambda ts: [there, s.workers[a.address]]
    future = await copied_to_both(c, s, a, b)
    await nothing_went(s, future, "x", a, b)


@planned_cluster(TWO_WORKERS, config=CONFIG)
async def test_a_keeper_is_dropped_if_the_readers_are_on_another_host(c, s, a, b):
    there = types.SimpleNamespace(host="there", address=a.address)
    plugin_of(s)._engine.replicas.keepers = lambda ts: [there]
    future = await copied_to_both(c, s, a, b)
    await dropped(s, a, "x")
    await Event("go").set()
    assert await future == 7 * LARGE


@planned_cluster(TWO_WORKERS, config=CONFIG)
async def test_small_results_are_not_worth_a_message(c, s, a, b):
    x, y = value_at(a, "x", 1, 1000), value_at(b, "y", 1)
    (future,) = submit(c, joined("z", x, y, gate="go"))
    await runs(b, "z")
    await held_by(s, "x", a, b)
    await Event("go").set()
    assert await future == LARGE + 1000
    assert check(s)["copies_dropped"] == 0


@pytest.mark.parametrize("way", ["scatter", "replicate"])
@planned_cluster(THREE_WORKERS, config=CONFIG)
async def test_copies_that_a_client_asked_for_stay(c, s, a, b, d, way):
    if way == "scatter":
        shared = await c.scatter(make(1, LARGE), broadcast=True)
    else:
        shared = c.submit(make, 1, LARGE)
        await c.replicate(shared, n=3)
    future = c.submit(combine, shared, gate="go", workers=[b.address])
    await runs(b, future.key)
    assert holders(s, shared.key) == {a.address, b.address, d.address}
    await Event("go").set()
    assert await future == LARGE
    assert holders(s, shared.key) == {a.address, b.address, d.address}
    assert check(s)["copies_dropped"] == 0


@planned_cluster(TWO_WORKERS, config=CONFIG)
async def test_tasks_are_not_kept_from_being_forgotten(c, s, a, b):
    future = await copied_to_both(c, s, a, b)
    await Event("go").set()
    assert await future == 7 * LARGE
    del future
    await async_poll_for(lambda: not s.tasks, 10)
    gc.collect()
    kept = {ts.key for ts in scheduler_module.TaskState._instances}
    assert kept.isdisjoint({"x", "y", "z"})


# ---- Workers lost, and the plugin taken out --------------------------------------------------


@pytest.mark.parametrize("lost", ["the one that keeps it", "the one that dropped it"])
@planned_cluster(THREE_WORKERS, config=CONFIG)
async def test_a_worker_is_lost_after_a_copy_was_dropped(c, s, a, b, d, lost):
    x, y = value_at(a, "x", 1), value_at(b, "y", 2, 3 * LARGE)
    (future,) = submit(c, joined("z", x, y, gate="go"))
    await runs(b, "z")
    await dropped(s, a, "x")
    if lost == "the one that keeps it":
        await b.close(executor_wait=False)
        await async_poll_for(lambda: executing(a, "z") or executing(d, "z"), 10)
    else:
        await a.close(executor_wait=False)
        assert executing(b, "z")
    s.validate_state()
    await Event("go").set()
    assert await future == 7 * LARGE


@planned_cluster(TWO_WORKERS, config=CONFIG)
async def test_a_worker_retires_while_copies_are_dropped(c, s, a, b):
    x, y = value_at(a, "x", 1), value_at(b, "y", 2, 3 * LARGE)
    (future,) = submit(c, joined("z", x, y, gate="go"))
    await runs(b, "z")
    await dropped(s, a, "x")
    await c.retire_workers([a.address])
    s.validate_state()
    await Event("go").set()
    assert await future == 7 * LARGE


@planned_cluster(TWO_WORKERS, config=CONFIG)
async def test_replicas_of_a_retiring_workers_results_stay(c, s, a, b):
    (future,) = submit(c, joined("z", value_at(a, "x", 1), gate="go", at=a))
    await runs(a, "z")
    # It ends when the copy is there; if that were dropped for the reader's sake, never.
    await wait_for(c.retire_workers([a.address]), 20)
    await Event("go").set()
    assert await future == LARGE


@gen_cluster(client=True, nthreads=TWO_WORKERS, config=CONFIG)
async def test_uninstall_restores_the_handler_of_replicas(c, s, a, b):
    handlers = dict(s.stream_handlers)
    with our_failures() as failures:
        await c.register_plugin(MarsSchedulerPlugin())
        assert s.stream_handlers != handlers
        future = await copied_to_both(c, s, a, b, value_at(a, "x", 1))
        await c.unregister_scheduler_plugin("marsched")
        # Results of several tasks may still be on their way.
        assert s.stream_handlers.pop(FINISHED)
        assert s.stream_handlers == handlers
        await Event("go").set()
        assert await future == 7 * LARGE
        await c.compute(joined("another", value_at(a, "u", 1), value_at(b, "v", 1)))
    assert not failures, failures[0]
    s.validate_state()


# ---- What is looked at -----------------------------------------------------------------------


class _Worker(types.SimpleNamespace):
    __hash__ = object.__hash__
    __eq__ = object.__eq__


class _Task(types.SimpleNamespace):
    __hash__ = object.__hash__
    __eq__ = object.__eq__


WORKERS = [_Worker(address=f"w{i}", host="h", nthreads=4, status=Status.running) for i in range(6)]
PLACES = st.none() | st.sampled_from(range(len(WORKERS)))


@given(
    first=st.lists(PLACES, min_size=1, max_size=30),
    changes=st.lists(
        st.tuples(st.integers(0, 29), PLACES | st.just("done"), st.sets(st.integers(0, 5)))
    ),
)
def test_the_remembered_reader_does_not_change_decisions(
    first: list[int | None], changes: list[tuple[int, Any, set[int]]]
) -> None:
    readers = [_Task(processing_on=None if at is None else WORKERS[at]) for at in first]
    ts: Any = _Task(nbytes=LARGE, state="memory", who_wants=None, waiters=set(readers))
    ts.who_has = set(WORKERS[:2])
    replicas = UnneededReplicas()
    for number, at, there in changes:
        ts.who_has = {WORKERS[i] for i in there} or ts.who_has
        reader = readers[number % len(readers)]
        if at == "done":
            ts.waiters.discard(reader)
        else:
            reader.processing_on = None if at is None else WORKERS[at]
        fresh = UnneededReplicas()
        for one in (replicas, fresh):
            one.copied([ts])
        assert replicas.superfluous() == fresh.superfluous()


def test_all_readers_of_a_result_are_checked_a_few_times_only() -> None:
    """Of 10,000 tasks that read it each one that ends says that the result may be superfluous."""
    looks = 0

    class Reader(_Task):
        def __getattribute__(self, name: str) -> Any:
            nonlocal looks
            looks += name == "processing_on"
            return super().__getattribute__(name)

    here, there = WORKERS[:2]
    readers = [Reader(processing_on=here) for _ in range(10_000)]
    readers[-1].processing_on = None
    ts: Any = _Task(nbytes=LARGE, state="memory", who_wants=None, waiters=set(readers))
    ts.who_has = {here, there}
    replicas = UnneededReplicas()
    for reader in readers[:-1]:
        ts.waiters.discard(reader)
        replicas.copied([ts])
        assert replicas.superfluous() == {}
    assert looks < 40_000
    readers[-1].processing_on = here
    replicas.copied([ts])
    assert replicas.superfluous() == {there: [ts]}
