"""The contract with distributed: its checks work, and distributed behaves as the adapter expects.

A version of distributed for which one of these tests fails needs another adapter.
"""

import distributed
import pytest
from dask.delayed import delayed
from distributed import Event, Scheduler, SchedulerPlugin
from distributed import scheduler as scheduler_module
from distributed.utils_test import async_poll_for, gen_cluster, inc

from dask_marsched.host.contract import explain
from dask_marsched.host.scheduler import contract

ONE_WORKER = [("127.0.0.1", 1)]
NO_MEMORY_MANAGER = {"distributed.scheduler.active-memory-manager.start": False}


@gen_cluster(nthreads=[])
async def test_this_version_fits(s):
    assert contract.misfits(s) == []


@gen_cluster(nthreads=[])
async def test_missing_methods_and_other_signatures_are_found(s):
    for name, parameters in contract._METHODS.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Scheduler, name, None)
            assert contract.misfits(s) == [f"Scheduler.{name} is missing"]
            patch.setattr(Scheduler, name, lambda self: None)
            assert contract.misfits(s) == [f"Scheduler.{name} takes no {p!r}" for p in parameters]


@gen_cluster(nthreads=[])
async def test_missing_attributes_are_found(s):
    class Without:
        def __init__(self, name):
            object.__setattr__(self, "name", name)

        def __getattribute__(self, asked):
            if asked == object.__getattribute__(self, "name"):
                raise AttributeError(asked)
            return getattr(s, asked)

    for name in contract._ATTRIBUTES:
        assert f"Scheduler has no attribute {name}" in contract.misfits(Without(name))


@gen_cluster(nthreads=[])
async def test_other_transitions_are_found(s):
    for entry in contract.REPLACED_TRANSITIONS:
        table = {**Scheduler._TRANSITIONS_TABLE, entry: Scheduler._transition_released_waiting}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Scheduler, "_TRANSITIONS_TABLE", table)
            (found,) = contract.misfits(s)
        assert str(entry) in found


@gen_cluster(nthreads=[])
async def test_other_stealing_is_found(s, monkeypatch):
    stealing = s.extensions["stealing"]
    stock, stealing.in_flight_tasks = stealing.in_flight_tasks, None
    assert contract.misfits(s) == ["stealing.in_flight_tasks is no dictionary"]
    stealing.in_flight_tasks = stock
    monkeypatch.setattr(type(stealing), "_get_thief", None)
    assert contract.misfits(s) == ["stealing._get_thief is missing"]


@gen_cluster(nthreads=[])
async def test_another_handler_of_replicas_is_found(s):
    expected = ["the stream handler 'add-keys' is not Scheduler.add_keys"]
    for handler in (None, print):
        s.stream_handlers["add-keys"] = handler
        assert contract.misfits(s) == expected
    del s.stream_handlers["add-keys"]
    assert contract.misfits(s) == expected


def test_the_explanation_names_version_and_consequence():
    text = explain(["this", "that"], "stock scheduling stays in force")
    assert distributed.__version__ in text
    assert "this; that" in text
    assert "stock scheduling stays in force" in text


def wait_for(event, i):
    Event(event).wait()


# ---- How distributed behaves -----------------------------------------------------------------


@gen_cluster(client=True, nthreads=ONE_WORKER)
async def test_update_graph_is_called_before_the_first_transition(c, s, a):
    seen = {}

    class Watch(SchedulerPlugin):
        def update_graph(self, scheduler, *, keys, **kwargs):
            seen.update({key: scheduler.tasks[key].state for key in keys})
            seen["priorities"] = all(scheduler.tasks[key].priority for key in keys)

    s.add_plugin(Watch())
    assert await c.submit(inc, 1, key="x") == 2
    assert seen == {"x": "released", "priorities": True}


@gen_cluster(client=True, nthreads=ONE_WORKER)
async def test_recommendations_are_processed_last_in_first_out(c, s, a):
    """`SchedulerAdapter` therefore passes them in reverse."""
    futures = c.map(wait_for, ["gate"] * 4, range(4), key=[f"x-{i}" for i in range(4)])
    await async_poll_for(lambda: bool(s.queued), 5)
    order = []

    class Watch(SchedulerPlugin):
        def transition(self, key, start, finish, *args, **kwargs):
            if (start, finish) == ("queued", "released"):
                order.append(key)

    s.add_plugin(Watch())
    queued = [ts.key for ts in sorted(s.queued, key=lambda ts: ts.priority)]
    assert len(queued) == 2
    s.transitions(dict.fromkeys(queued, "released"), "test")
    assert order == queued[::-1]
    await Event("gate").set()
    await c.gather(futures)


@gen_cluster(client=True, nthreads=ONE_WORKER)
async def test_every_result_opens_queue_slots(c, s, a, monkeypatch):
    """Withheld tasks are dispatched in this hook only."""
    asked = []
    stock = s.stimulus_queue_slots_maybe_opened

    def ask(*, stimulus_id):
        asked.append(stimulus_id)
        stock(stimulus_id=stimulus_id)

    s.stimulus_queue_slots_maybe_opened = ask
    await c.compute(delayed(inc)(1))
    assert any(stimulus.startswith("task-finished") for stimulus in asked)
    del s.stimulus_queue_slots_maybe_opened


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2, config=NO_MEMORY_MANAGER)
async def test_replicas_are_reported_to_a_handler_and_removed_on_request(c, s, a, b):
    """The handler is looked up for every message; the scheduler records a removal at once."""
    reported = []

    def watch(worker, keys=(), stimulus_id=None):
        reported.append((worker, list(keys)))
        return s.add_keys(worker=worker, keys=keys, stimulus_id=stimulus_id)

    stock = s.stream_handlers["add-keys"]
    assert stock == s.add_keys
    s.stream_handlers["add-keys"] = watch
    x = c.submit(inc, 1, key="x", workers=[a.address])
    assert await c.submit(inc, x, key="y", workers=[b.address]) == 3
    await async_poll_for(lambda: bool(reported), 5)
    assert reported == [(b.address, ["x"])]
    s.stream_handlers["add-keys"] = stock
    s.request_remove_replicas(a.address, ["x"], stimulus_id="test")
    assert {ws.address for ws in s.tasks["x"].who_has} == {b.address}
    await async_poll_for(lambda: "x" not in a.data, 5)
    assert await x == 2


@gen_cluster(client=True, nthreads=ONE_WORKER)
async def test_a_result_does_not_pass_public_transitions(c, s, a):
    """Unneeded replicas must therefore also be dropped when queue slots open."""
    called = []
    stock = s.transitions

    def watch(recommendations, stimulus_id):
        called.append(stimulus_id)
        stock(recommendations, stimulus_id)

    s.transitions = watch
    assert await c.submit(inc, 1, key="x") == 2
    assert called
    assert not any(stimulus.startswith("task-finished") for stimulus in called)
    del s.transitions


@gen_cluster(client=True, nthreads=ONE_WORKER)
async def test_a_graph_is_materialized_by_a_function_of_the_module(c, s, a, monkeypatch):
    stock, called = scheduler_module._materialize_graph, []

    def watch(expr, validate):
        called.append(expr)
        return stock(expr=expr, validate=validate)

    monkeypatch.setattr(scheduler_module, "_materialize_graph", watch)
    assert await c.compute(delayed(inc)(1)) == 2
    assert len(called) == 1
