"""Answers that nobody waits for travel with other messages, in order, and none is lost."""

from typing import Any

import dask.array as da
import pytest
from distributed import Scheduler
from distributed.utils_test import async_poll_for, gen_cluster
from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.host.scheduler.adopters import KEPT
from dask_marsched.host.worker import deferred_messages
from dask_marsched.host.worker.deferred_messages import (
    ANNOUNCED_WITHIN,
    PATIENCE,
    DeferredMessages,
    MessageDeferral,
)
from dask_marsched.simulation import simulate
from dask_marsched.simulation.cluster.cluster import Cluster


class Wire:
    """What was sent, and the timers."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.timers: list[Any] = []
        self.delays: list[float] = []
        self.deferred = DeferredMessages(self.sent.append, self.later)

    def later(self, seconds: float, call: Any) -> None:
        self.delays.append(seconds)
        self.timers.append(call)

    def free(self, *keys: str) -> None:
        with self.deferred.freeing(keys):
            for key in keys:
                self.deferred.send(released(key))


def released(key: str) -> dict[str, Any]:
    return {"op": "release-worker-data", "key": key}


FINISHED = {"op": "task-finished", "key": "z"}


def test_answers_wait_for_the_next_message():
    wire = Wire()
    wire.free("a")
    wire.free("b", "c")
    assert wire.sent == []
    wire.deferred.send(FINISHED)
    assert wire.sent == [released("a"), released("b"), released("c"), FINISHED]
    assert wire.deferred.gathered == 3


def test_releases_by_the_worker_itself_are_sent_at_once():
    wire = Wire()
    wire.deferred.send(released("a"))
    with wire.deferred.freeing(["b"]):
        wire.deferred.send(released("c"))
    assert wire.sent == [released("a"), released("c")]


def test_one_timer_flushes_the_rest():
    wire = Wire()
    wire.free("a")
    wire.free("b")
    assert len(wire.timers) == 1
    wire.timers.pop()()
    assert wire.sent == [released("a"), released("b")]
    wire.free("c")
    assert len(wire.timers) == 1


def test_announcements_wait_for_the_next_message_but_not_long():
    wire = Wire()
    kept = {"op": "log-event", "topic": KEPT, "msg": "a"}
    wire.free("a")
    wire.deferred.send(kept)
    wire.deferred.send(kept)
    assert (wire.sent, wire.delays) == ([], [PATIENCE, ANNOUNCED_WITHIN])
    wire.deferred.send(FINISHED)
    assert wire.sent == [released("a"), kept, kept, FINISHED]
    wire.deferred.send(kept)
    wire.timers.pop()()
    assert wire.sent[4:] == [kept]
    other = {"op": "log-event", "topic": "mine", "msg": "a"}
    wire.deferred.send(other)
    assert wire.sent[5:] == [other]


def test_what_is_there_again_is_not_said_to_be_gone():
    wire = Wire()
    wire.free("a", "b")
    wire.deferred.stored(["b", "c"])
    wire.free("b")
    assert wire.sent == [released("a"), released("b")], "this time it is"
    wire.free("b")
    assert len(wire.sent) == 2


@given(st.lists(st.integers(0, 3)))
def test_all_arrive_once_and_in_order(steps):
    wire = Wire()
    made = []
    for number, step in enumerate(steps):
        key = str(number)
        if step == 3 and wire.timers:
            wire.timers.pop()()
        elif step:
            made.append(released(key))
            wire.free(key)
        else:
            made.append({"op": "task-finished", "key": key})
            wire.deferred.send(made[-1])
    wire.deferred.flush()
    assert wire.sent == made


def batches(monkeypatch: pytest.MonkeyPatch, gather: bool) -> list[list[str]]:
    """Return the operations in each batch of messages to the scheduler, in a simulation."""
    received: list[list[str]] = []
    handle = Cluster.received

    def note(cluster: Cluster, worker: Any, messages: list[dict[str, Any]]) -> None:
        received.append([message["op"] for message in messages])
        handle(cluster, worker, messages)

    x = da.ones((4000, 4000), chunks=500)
    with monkeypatch.context() as patch:
        patch.setattr(Cluster, "received", note)
        patch.setitem(simulate.__globals__, "_batches_releases", lambda plugin: gather)
        report = simulate((x + x.T).sum(), policy="default+off", validate=True, isolated=False)
    assert report.tasks_recomputed == 0
    return received


def test_the_twin_s_workers_gather_as_real_ones_do(monkeypatch):
    apart, together = (batches(monkeypatch, gather) for gather in (False, True))
    alone = ["release-worker-data"]
    assert sum(set(batch) == set(alone) for batch in apart) > 20
    assert sum(set(batch) == set(alone) for batch in together) <= 4  # as the timers ring
    assert len(together) < len(apart)
    finished = [sum(batch.count("task-finished") for batch in b) for b in (apart, together)]
    assert finished[0] == finished[1]


def footprint(worker: Any) -> tuple[Any, ...]:
    own = (vars(worker).get("batched_send"), vars(worker).get("update_data"))
    return dict(worker.stream_handlers), dict(worker.handlers), own


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_on_a_worker(c: Any, s: Scheduler, a: Any) -> None:
    before = footprint(a)
    deferral = MessageDeferral(a)
    deferral.install()
    x = da.ones((40, 40), chunks=10)
    assert await c.compute((x + x.T).sum()) == 3200
    # What was computed is forgotten, and the worker tells of it within a second.
    await async_poll_for(lambda: not a.data and not s.tasks, 5)
    assert deferral.report()["answers"] > 0
    future = c.submit(sum, [1, 2])
    assert await future == 3
    deferral.uninstall()
    deferral.uninstall()
    assert footprint(a) == before
    assert deferral.report() == {"answers": 0}


@pytest.mark.parametrize("copies", [False, True])
@gen_cluster(client=True)
async def test_answers_about_scattered_data_are_not_held_back(c, s, a, b, copies):
    deferrals = [MessageDeferral(worker) for worker in (a, b)]
    for deferral in deferrals:
        deferral.install()
    future = await c.scatter(1, broadcast=copies)
    key = future.key
    future.release()
    await async_poll_for(lambda: key not in a.data and key not in b.data, 5)
    assert [deferral.report() for deferral in deferrals] == [{"answers": 0}] * 2
    for deferral in deferrals:
        deferral.uninstall()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"stream_handlers": {}}, "the worker has no stream handler 'free-keys'"),
        ({"batched_send": None}, "worker.batched_send is missing"),
        ({"handlers": {}}, "the worker has no handler 'update_data'"),
        ({"update_data": None}, "worker.update_data is missing"),
    ],
)
@gen_cluster(nthreads=[("127.0.0.1", 1)])
async def test_a_worker_that_differs_is_left_alone(s, a, changes, text):
    class Other:
        stream_handlers = changes.get("stream_handlers", a.stream_handlers)
        batched_send = changes.get("batched_send", a.batched_send)
        handlers = changes.get("handlers", a.handlers)
        update_data = changes.get("update_data", a.update_data)

    assert deferred_messages.misfits(a) == []
    with pytest.raises(RuntimeError, match=text):
        MessageDeferral(Other()).install()
