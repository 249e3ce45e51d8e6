"""The quota on real workers: deferral, eviction, forced starts, setup and teardown."""

import asyncio
import gc
import operator
import sys
import time
import weakref
from types import SimpleNamespace

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import Task, TaskRef
from distributed import Client, Event, Future, Nanny, Worker, get_worker, wait, worker_client
from distributed.comm import CommClosedError
from distributed.spill import SpillBuffer
from distributed.utils_test import async_poll_for, gen_cluster, inc
from distributed.worker_state_machine import WorkerState

from dask_marsched.config import Settings
from dask_marsched.host.batched_messages import COMPUTE
from dask_marsched.host.graph.fused_tasks import join
from dask_marsched.host.worker.data import WorkerStore
from dask_marsched.policies.memory_needs import NeedModel, OperandKind
from dask_marsched.policies.quota import MemoryNeed, MemoryRequest
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from dask_marsched.status import status
from dask_marsched.worker_plugin import MarsWorkerPlugin
from tests.harness import check, planned_cluster, plugin_of, report_of
from tests.processes import WITHOUT_PACKAGE

MB = 10**6
ONE = [("127.0.0.1", 1)]
TWO_THREADS = [("127.0.0.1", 2)]


OFF = {
    "quota_enabled": False,
    "store_shared": False,
    "interrupt": False,
    "adopt": "off",
    "kernels_enabled": False,
}


def with_parts(**settings):
    """Return a plugin with these parts on the workers and no others."""
    return MarsSchedulerPlugin(settings=Settings(**{**OFF, **settings}))


def with_quota(**settings):
    return with_parts(quota_enabled=True, **settings)


def array(n, nbytes=10 * MB):
    return np.full(nbytes // 8, n, dtype="f8")


def gated(gate, *inputs, nbytes=10 * MB):
    """Return an array after an event; `Event` is waited for as a task of a user would."""
    Event(gate).wait()
    return array(len(inputs), nbytes)


def admission_of(worker):
    found = worker.plugins["marsched"]._parts["quota"]
    assert found is not None, worker.plugins["marsched"].report()
    return found


def counts_of(worker):
    report = admission_of(worker).report()
    assert report["exceptions"] == {}, report["last_exception"]
    return report


def assert_nothing_is_left(worker):
    admission = admission_of(worker)
    assert counts_of(worker)["promised"] == 0
    assert not any((admission.quota.grants, admission._kinds, admission._footprints.prefixes()))


def leave_free(worker, nbytes):
    """Set the limit so that this much of it is free now."""
    admission = admission_of(worker)
    admission._refresh(exact=True)
    admission.quota.limit = admission.quota.used + nbytes


async def known(c, function, *args, **kwargs):
    """Run a task and drop it, so that its kind is known."""
    future = c.submit(function, *args, pure=False, **kwargs)
    key = future.key
    await future
    del future
    await async_poll_for(lambda: key not in c.futures, 5)


# --- coming and going ---------------------------------------------------------------------


@planned_cluster(ONE, plugin=with_quota)
async def test_present_and_future_workers_get_the_plugin(c, s, a):
    assert counts_of(a)["limit"] == int(0.75 * a.memory_manager.memory_limit)
    async with Worker(s.address) as late:
        assert await c.submit(inc, 1, workers=[late.address]) == 2
        assert counts_of(late)["admitted"] == 1
    assert report_of(s)["worker_parts"] == ["quota"]


def with_all_parts():
    return MarsSchedulerPlugin(settings=Settings(quota_enabled=True, store_shared=True))


@planned_cluster(ONE, plugin=with_all_parts)
async def test_quota_store_and_sharing_are_on_by_default(c, s, a):
    parts = ["quota", "shared", "adoption", "interrupts", "kernels"]
    assert report_of(s)["worker_parts"] == parts
    report = a.plugins["marsched"].report()
    assert type(a.data) is WorkerStore
    assert report["quota"]["limit"] > 0
    await async_poll_for(
        lambda: "no nanny" in a.plugins["marsched"].report()["reasons"]["shared"], 5
    )


@planned_cluster(ONE, plugin=with_parts)
async def test_with_all_parts_off_workers_only_batch_messages(c, s, a):
    assert report_of(s)["worker_parts"] == []
    report = a.plugins["marsched"].report()
    assert [part for part, found in report.items() if found] == ["messages", "reasons"]
    assert (type(a.state), type(a.data)) == (WorkerState, SpillBuffer)


@gen_cluster(client=True, nthreads=ONE)
async def test_removal_restores_the_worker_exactly(c, s, a):
    def picture():
        manager, state = a.memory_manager, a.state
        return (
            type(state),
            type(a.data),
            a.data.n,
            a.data is state.data,
            vars(a).keys(),
            a.handlers["get_data"],
            manager.memory_spill_fraction,
            state.transfer_incoming_bytes_limit,
            a.plugins["shuffle"].memory_limiter_comms.limit,
            a.plugins["shuffle"].memory_limiter_disk.limit,
            vars(a.plugins["shuffle"].shuffle_runs).keys(),
        )

    before = picture()
    assert before[:2] == (WorkerState, SpillBuffer)
    await c.register_plugin(with_quota())
    x = await c.scatter(array(1), hash=False)
    assert admission_of(a)
    shuffles = a.plugins["shuffle"]
    admission_of(a).host.bound_shuffles(1000)
    assert shuffles.memory_limiter_comms.limit == shuffles.memory_limiter_disk.limit == 1000
    assert all(old != new for old, new in zip(picture()[:2], before[:2], strict=True))
    plugin = plugin_of(s)
    await c.unregister_scheduler_plugin("marsched")
    await plugin.workers_told()
    assert "marsched" not in a.plugins
    assert "marsched" not in s.worker_plugins
    assert picture() == before
    assert await c.submit(np.sum, x) == 10 * MB / 8
    assert await c.submit(inc, 1) == 2


@gen_cluster(client=True, nthreads=ONE)
async def test_setup_waits_for_a_teardown_under_way(c, s, a):
    before = (a.batched_send, a.handlers["get_data"], dict(a.stream_handlers), vars(a).keys())
    ok = {"status": "OK"}
    assert await a.plugin_add(plugin=MarsWorkerPlugin(), name="marsched") == ok
    for _ in range(2):
        going = asyncio.ensure_future(a.plugin_remove(name="marsched"))
        await asyncio.sleep(0)
        coming = asyncio.ensure_future(a.plugin_add(plugin=MarsWorkerPlugin(), name="marsched"))
        assert await asyncio.gather(going, coming) == [ok, ok]
        assert admission_of(a)
        assert (type(a.data), a.plugins["marsched"].report()["reasons"].keys()) == (
            WorkerStore,
            {"shared"},
        )
    assert await a.plugin_remove(name="marsched") == ok
    assert (type(a.state), type(a.data)) == (WorkerState, SpillBuffer)
    assert a.stream_handlers.pop(COMPUTE)  # such messages may still be on their way
    after = (a.batched_send, a.handlers["get_data"], dict(a.stream_handlers), vars(a).keys())
    assert after == before


@gen_cluster(client=True, nthreads=ONE)
async def test_removal_followed_by_registration_leaves_the_plugin_in_force(c, s, a):
    broadcast, added = s.broadcast, asyncio.Event()

    async def slow_to_remove(*, msg, **kwargs):
        if msg["op"] == "plugin-remove":
            await added.wait()
        return await broadcast(msg=msg, **kwargs)

    s.broadcast = slow_to_remove
    await c.register_plugin(with_all_parts())
    part, plugin = a.plugins["marsched"], plugin_of(s)
    await c.unregister_scheduler_plugin("marsched")
    again = asyncio.create_task(c.register_plugin(with_all_parts()))
    await async_poll_for(lambda: "marsched" in s.worker_plugins, 5)
    added.set()
    await again
    await plugin.workers_told()
    assert a.plugins["marsched"] is not part
    assert admission_of(a)
    await c.unregister_scheduler_plugin("marsched")
    await async_poll_for(lambda: "marsched" not in a.plugins and type(a.data) is SpillBuffer, 5)


class BrokenComm:
    peer_address = "tcp://127.0.0.1:1"

    async def write(self, *args, **kwargs):
        raise CommClosedError("on purpose")

    def abort(self):
        pass


@gen_cluster(client=True, nthreads=ONE)
async def test_messages_that_could_not_be_sent_are_not_kept_by_the_log(c, s, a):
    await c.register_plugin(with_quota())
    x = await c.scatter(array(1), hash=False)
    assert admission_of(a)
    there = weakref.ref(a.data[x.key])
    with pytest.raises(CommClosedError, match="on purpose"):
        await a.handlers["get_data"](BrokenComm(), keys=[x.key], who="a peer")
    x.release()
    await async_poll_for(lambda: not a.data, 5)
    gc.collect()
    assert there() is None


@gen_cluster(client=True, nthreads=TWO_THREADS)
async def test_removal_while_an_operand_is_deferred(c, s, a):
    await c.register_plugin(with_quota())
    await known(c, array, 1)
    blocked = c.submit(gated, "gate", key="blocked")
    await async_poll_for(lambda: bool(a.state.executing), 5)
    leave_free(a, MB)
    deferred = c.submit(array, 2, key="array-2")
    await async_poll_for(lambda: admission_of(a).counts["deferrals"], 5)
    await c.unregister_scheduler_plugin("marsched")
    await wait(deferred)
    assert not blocked.done()
    await Event("gate").set()
    await wait(blocked)


@gen_cluster(client=True, nthreads=ONE)
async def test_a_second_registration_replaces_the_first(c, s, a):
    await c.register_plugin(with_quota())
    with pytest.warns(UserWarning, match="already contains a plugin"):
        await c.register_plugin(with_quota(quota_fraction=0.5))
    assert counts_of(a)["limit"] == int(0.5 * a.memory_manager.memory_limit)
    with pytest.warns(UserWarning, match="already contains a plugin"):
        await c.register_plugin(with_parts())
    assert a.plugins["marsched"].report()["quota"] is None
    assert type(a.state) is WorkerState
    check(s)


@gen_cluster(client=True, nthreads=ONE, worker_kwargs={"memory_limit": 0})
async def test_a_worker_that_cannot_spill_is_left_unchanged(c, s, a):
    await c.register_plugin(with_quota(store_shared=True))
    report = a.plugins["marsched"].report()
    reasons = report.pop("reasons")
    assert {part for part, found in report.items() if found} == {"messages"}
    assert reasons.pop("kernels") == "switched off by marsched.fusion.kernels"
    assert reasons.pop("interrupts") == "switched off by marsched.cancelling.interrupt"
    assert reasons.pop("adoption") == "switched off by marsched.failover.adopt"
    assert reasons.keys() == {"quota", "store", "shared"}
    assert all("the worker keeps its data in a dict" in text for text in reasons.values())
    assert type(a.state) is WorkerState
    assert await c.submit(inc, 1) == 2


@gen_cluster(client=True, nthreads=[])
async def test_a_worker_without_a_limit_has_no_quota(c, s, tmp_path):
    await c.register_plugin(with_quota())
    data = SpillBuffer(str(tmp_path), MB)
    async with Worker(s.address, nthreads=1, memory_limit=0, data=data) as a:
        report = a.plugins["marsched"].report()
        assert report["quota"] is None
        assert report["reasons"]["quota"] == "the worker has no memory limit"
        assert report["store"] is not None
        assert type(a.state) is WorkerState
        assert await c.submit(inc, 1) == 2


@gen_cluster(client=True, nthreads=ONE * 2)
async def test_distributed_does_not_keep_what_was_removed(c, s, a, b):
    await c.register_plugin(with_quota())
    adapter = weakref.ref(admission_of(a).host)
    x = c.submit(array, 1, key="x", workers=[a.address])
    assert await c.submit(np.sum, x, workers=[b.address]) == 10 * MB / 8  # a's handler is called
    await c.unregister_scheduler_plugin("marsched")

    def is_gone():
        gc.collect()
        return adapter() is None

    await async_poll_for(is_gone, 5)


@gen_cluster(client=True, nthreads=ONE)
async def test_workers_are_left_unchanged_on_other_systems_than_linux(c, s, a, monkeypatch, caplog):
    monkeypatch.setattr("dask_marsched.worker_plugin.sys", SimpleNamespace(platform="darwin"))
    await c.register_plugin(with_all_parts())
    report = a.plugins["marsched"].report()
    for part in ("quota", "store", "shared"):
        assert report[part] is None
        assert "not on darwin" in report["reasons"][part]
    assert (type(a.state), type(a.data)) == (WorkerState, SpillBuffer)
    assert await c.submit(inc, 1) == 2
    assert "dask_marsched" not in {record.name for record in caplog.records}


@gen_cluster(client=True, nthreads=ONE)
async def test_a_worker_that_fails_the_contract_checks_is_left_unchanged(c, s, a):
    a.execute = lambda key: None
    await c.register_plugin(with_quota())
    report = a.plugins["marsched"].report()
    assert report["quota"] is None
    assert "worker.execute takes no 'stimulus_id'" in report["reasons"]["quota"]
    assert type(a.state) is WorkerState
    del a.execute


@pytest.mark.extended
@gen_cluster(client=True, nthreads=[], timeout=60)
async def test_a_restarted_worker_gets_the_plugin_again(c, s):
    await c.register_plugin(with_quota())
    async with Nanny(s.address, nthreads=1) as nanny:
        await nanny.restart()
        await c.wait_for_workers(1)
        reports = await c.run(lambda dask_worker: dask_worker.plugins["marsched"].report())
    (report,) = reports.values()
    assert report["quota"]["limit"] > 0
    assert "quota" not in report["reasons"]


# --- decisions ----------------------------------------------------------------------------


@planned_cluster(TWO_THREADS, plugin=with_quota)
async def test_operands_that_do_not_fit_wait(c, s, a):
    await Event("gate").set()
    await known(c, gated, "gate", nbytes=40 * MB)
    await Event("gate").clear()
    leave_free(a, 60 * MB)
    futures = [c.submit(gated, "gate", key=f"gated-{n}", nbytes=40 * MB) for n in range(3)]
    await async_poll_for(lambda: admission_of(a).counts["deferrals"], 5)
    assert len(a.state.executing) == 1
    assert counts_of(a)["queued"] >= 40 * MB
    await Event("gate").set()
    await wait(futures)
    assert counts_of(a)["promised"] == counts_of(a)["queued"] == 0


@planned_cluster(ONE, plugin=with_quota)
async def test_cold_results_are_evicted_to_make_room(c, s, a):
    await known(c, array, 1)
    assert admission_of(a).needs.output(OperandKind("array", 0, 0)) >= 10 * MB
    x, y = c.submit(array, 1, key="array-1"), c.submit(array, 2, key="array-2")
    await wait([x, y])
    needed = c.submit(gated, "gate", x, key="needed")
    await async_poll_for(lambda: bool(a.state.executing), 5)
    leave_free(a, -5 * MB)
    more = c.submit(array, 3, key="array-3")
    await async_poll_for(lambda: admission_of(a).evictor.counts["evictions"], 5)
    # What runs reads x, so that y had to go.
    assert set(a.data.slow) == {y.key}
    await Event("gate").set()
    await wait([needed, more])
    found = counts_of(a)
    assert found["evictions"] >= 1
    assert found["evicted_bytes"] >= 10 * MB
    assert await c.submit(operator.itemgetter(0), y) == 2
    np.testing.assert_array_equal(await c.gather(y), array(2))
    assert found["failed_evictions"] == 0


def whether_spilled(key, nbytes):
    return np.full(nbytes // 8, get_worker().data.is_spilled(key), dtype="f8")


@planned_cluster(ONE, plugin=with_quota)
async def test_a_result_is_evicted_before_the_next_operand_is_forced(c, s, a):
    await known(c, whether_spilled, "none", 30 * MB)
    one = c.submit(gated, "gate", key="one")
    await async_poll_for(lambda: bool(a.state.executing), 5)
    # Far below what is taken: of that some may be freed at any time.
    admission_of(a).quota.limit = admission_of(a).quota.used // 2
    two = c.submit(whether_spilled, "one", 30 * MB, workers=[a.address])
    await async_poll_for(lambda: bool(a.state.ready), 5)
    await Event("gate").set()
    assert (await two)[0]
    assert counts_of(a)["forced"] == 1
    del one


def first(x):
    return x[:1]


@planned_cluster(ONE, plugin=with_quota)
async def test_an_edge_does_not_keep_a_chunk_in_memory(c, s, a):
    whole = c.submit(array, 1, key="whole")
    edges = [c.submit(first, whole, key=f"edge-{i}") for i in range(3)]
    await wait(edges)
    assert a.data["edge-0"].base is a.data["whole"]
    leave_free(a, -8 * MB)
    assert await c.submit(inc, 1) == 2
    await async_poll_for(lambda: admission_of(a).evictor.counts["parted"] == 3, 5)
    assert a.data.is_spilled("whole")
    assert a.data.held < MB
    assert counts_of(a)["evicted_bytes"] >= 10 * MB
    assert await c.gather(edges) == [[1.0]] * 3


@planned_cluster(ONE, plugin=with_quota)
async def test_pieces_of_a_chunk_are_evicted_together(c, s, a):
    whole = c.submit(array, 1, key="whole")
    step = 10 * MB // 8 // 4
    cuts = [slice(i * step, (i + 1) * step) for i in range(4)]
    pieces = [c.submit(operator.getitem, whole, cut, key=f"piece-{cut.start}") for cut in cuts]
    await wait(pieces)
    whole.release()
    await async_poll_for(lambda: "whole" not in a.data, 5)
    assert a.data.held == pytest.approx(10 * MB, rel=0.01)
    leave_free(a, -8 * MB)
    assert await c.submit(inc, 1) == 2
    await async_poll_for(lambda: admission_of(a).evictor.counts["evictions"] >= 4, 5)
    assert a.data.held < MB
    assert sum(await c.gather([c.submit(np.sum, p) for p in pieces])) == 10 * MB / 8


_seen = []


def doubled(x):
    _seen.append(weakref.ref(x))
    return x * 2


def with_its_input_gone(x):
    return x + 1 if _seen.pop()() is None else None


def a_fused_reader(c, key):
    steps = (
        Task("double", doubled, TaskRef(key)),
        Task("reader", with_its_input_gone, TaskRef("double")),
    )
    reader = join("reader", ["double"], {step.key: step for step in steps})
    (future,) = c.get({"reader": reader}, ["reader"], sync=False)
    return future


@planned_cluster(ONE, plugin=with_quota)
async def test_inputs_that_are_released_early_are_evicted_before_a_forced_start(c, s, a):
    x = await c.scatter(array(1), hash=False)
    # Far below what is taken: of that some may be freed at any time.
    admission_of(a).quota.limit = admission_of(a).quota.used // 2
    np.testing.assert_array_equal(await a_fused_reader(c, x.key), array(3))
    assert a.data.is_spilled(x.key)
    assert counts_of(a)["forced"] == 1


@planned_cluster(ONE, plugin=with_quota)
async def test_an_input_read_from_disk_is_released_while_its_reader_runs(c, s, a):
    x = await c.scatter(array(1), hash=False)
    assert a.data.evict(x.key) == 10 * MB
    leave_free(a, 40 * MB)
    assert (await a_fused_reader(c, x.key))[0] == 3


@planned_cluster(ONE, plugin=with_quota)
async def test_a_released_input_does_not_hide_working_space(c, s, a):
    admission = admission_of(a)
    if not admission._meter.available:
        pytest.skip("this kernel does not tell")
    x = await c.scatter(array(1, 100 * MB), hash=False)
    assert a.data.evict(x.key) == 100 * MB
    leave_free(a, 250 * MB)
    await a_fused_reader(c, x.key)
    assert admission.needs.footprint(OperandKind("reader", 1, 100 * MB)) > 180 * MB


@planned_cluster(ONE, plugin=with_quota)
async def test_small_operands_are_measured_a_few_times_only(c, s, a):
    admission, kind = admission_of(a), OperandKind("array", 0, 0)
    admission.quota.limit = 100 * 64 * MB
    for n in range(5):
        await known(c, array, n)
    assert admission.needs.seen(kind) == 3
    admission.quota.limit = 5 * 64 * MB
    await known(c, array, 6)
    assert admission.needs.seen(kind) == 4


@planned_cluster(ONE, plugin=with_quota)
async def test_an_operand_larger_than_everything_runs_alone(c, s, a, caplog):
    x = await c.scatter(array(1), hash=False)
    await known(c, array, 7, 30 * MB)
    # Far below what is taken: of that some may be freed at any time.
    admission_of(a).quota.limit = admission_of(a).quota.used // 2
    a.memory_manager.memory_pause_fraction = a.memory_manager.memory_spill_fraction = False
    a.memory_manager.memory_limit = 20 * MB
    told = "'array-.* more than the memory limit of this worker, 19.07 MiB.* use smaller chunks"
    with pytest.warns(UserWarning, match=told):
        assert (await c.submit(array, 7, 30 * MB))[0] == 7
    assert await c.submit(np.sum, x) == 10 * MB / 8
    assert counts_of(a)["evictions"] >= 1
    assert counts_of(a)["forced"] >= 1
    assert "more than the memory limit of this worker, 19.07 MiB" in caplog.text


@planned_cluster(ONE, plugin=with_quota)
async def test_a_memory_error_of_a_task_reaches_the_user(c, s, a):
    def too_much():
        return np.ones(1 << 50)

    with pytest.raises(MemoryError, match="Unable to allocate"):
        await c.submit(too_much)


@gen_cluster(client=True, nthreads=ONE)
async def test_a_full_disk_keeps_results_in_memory_and_everything_runs(c, s, a, monkeypatch):
    await c.register_plugin(with_quota())

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    await known(c, array, 1)
    x = c.submit(array, 1, key="array-1")
    await wait(x)
    leave_free(a, -5 * MB)
    with monkeypatch.context() as patched:
        patched.setattr("dask_marsched.store.spill_file.os.pwrite", full)
        assert (await c.submit(array, 2, key="array-2"))[0] == 2
        await async_poll_for(lambda: counts_of(a)["failed_evictions"] >= 1, 5)
        assert x.key in a.data.fast
        assert await c.submit(np.sum, x) == 10 * MB / 8


@planned_cluster(TWO_THREADS, plugin=with_quota)
async def test_sizes_derived_from_the_graph_are_known_before_the_first_operand_runs(c, s, a):
    await wait(c.submit(inc, 1))
    leave_free(a, 30 * MB)
    lazy = da.random.default_rng(0).random((5 * MB,), chunks=10 * MB // 8)  # four of 10 MB
    x = c.persist(lazy)
    await wait(x)
    told = {ts.annotations["marsched"]["nbytes"] for ts in a.state.tasks.values()}
    assert told == {10 * MB}
    # With what they may need beside the result there was room for one at a time.
    assert counts_of(a)["deferrals"] >= 1


@planned_cluster(TWO_THREADS, plugin=with_quota)
async def test_the_first_operand_of_a_kind_runs_alone(c, s, a):
    if not admission_of(a)._meter.available:
        pytest.skip("this kernel does not tell")
    leave_free(a, 400 * MB)
    # Only what is large for the worker counts, and this process may be large.
    nbytes = max(40 * MB, admission_of(a).quota.limit // 16 // 8 * 8)
    x = await c.scatter(array(1, nbytes), hash=False)
    leave_free(a, 10 * nbytes)
    assert admission_of(a).quota.limit / 16 < 2 * nbytes
    first = c.submit(gated, "gate", x, key="gated-1")
    await async_poll_for(lambda: bool(admission_of(a)._footprints.prefixes()), 5)
    second = c.submit(gated, "gate", x, key="gated-2")
    other = c.submit(np.sum, x, key="other")
    assert await other == nbytes / 8  # another kind goes first
    await async_poll_for(lambda: counts_of(a)["untried"] >= 1, 5)
    assert [ts.key for ts in a.state.executing] == ["gated-1"]
    await Event("gate").set()
    await wait([first, second])
    found = counts_of(a)
    assert found["deferrals"] == found["forced"] == 0


@planned_cluster(TWO_THREADS, plugin=with_quota)
async def test_the_first_operand_of_a_kind_may_wait_for_the_second(c, s, a, monkeypatch):
    monkeypatch.setattr("dask_marsched.worker.admission.PATIENCE", 0)
    x = await c.scatter(array(1, 40 * MB), hash=False)
    leave_free(a, 400 * MB)
    blocked = c.submit(gated, "gate", x, key="pair-1")
    await async_poll_for(lambda: bool(a.state.executing), 5)
    opening = c.submit(opener, "gate", 8, x, key="pair-2")
    await wait([blocked, opening])


def nested(x, depth):
    if not depth:
        return x.nbytes
    with worker_client() as client:
        return client.submit(nested, Future("x", client), depth - 1).result()


@planned_cluster(TWO_THREADS, plugin=with_quota)
async def test_a_seceded_operand_does_not_hold_back_others_of_its_kind(c, s, a, monkeypatch):
    monkeypatch.setattr("dask_marsched.worker.admission.PATIENCE", 3600)
    if not admission_of(a)._meter.available:
        pytest.skip("this kernel does not tell")
    leave_free(a, 400 * MB)
    nbytes = max(40 * MB, admission_of(a).quota.limit // 16 // 8 * 8)
    x = c.submit(array, 1, nbytes, key="x")
    await wait(x)
    leave_free(a, 10 * nbytes)
    assert await c.submit(nested, x, 2) == nbytes
    assert_nothing_is_left(a)


@planned_cluster(ONE, plugin=with_parts)
async def test_without_a_quota_workers_get_no_sizes(c, s, a):
    x = c.persist(da.ones((1000,), chunks=500))
    await wait(x)
    assert [ts.annotations for ts in a.state.tasks.values()] == [{}, {}]


def blocked_until(gate):
    Event(gate).wait()


def opener(gate, nbytes, *inputs):
    Event(gate).set()
    return array(0, nbytes)


async def blocked_and_opener(c, a):
    """Return what runs, and what that waits for, for which there is no room."""
    await known(c, opener, "other", 40 * MB)
    blocked = c.submit(blocked_until, "gate", key="blocked")
    await async_poll_for(lambda: bool(a.state.executing), 5)
    leave_free(a, MB)
    return blocked, c.submit(opener, "gate", 40 * MB, key="opener-1")


@planned_cluster(TWO_THREADS, plugin=with_quota)
async def test_an_operand_is_forced_if_a_running_one_waits_for_it(c, s, a, monkeypatch):
    monkeypatch.setattr("dask_marsched.worker.admission.PATIENCE", 0)
    blocked, opening = await blocked_and_opener(c, a)
    await wait([blocked, opening])
    found = counts_of(a)
    assert found["deferrals"] == found["forced"] == 1


def compute_a_little():
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass


@planned_cluster(TWO_THREADS, plugin=with_quota)
async def test_the_event_loop_does_not_count_as_work(c, s, a):
    blocked, opening = await blocked_and_opener(c, a)
    admission = admission_of(a)
    await async_poll_for(lambda: admission.counts["deferrals"], 5)
    admission._look()
    since = admission._idle.since
    compute_a_little()
    admission._look()
    assert admission._idle.since == since > 0
    await asyncio.to_thread(compute_a_little)
    admission._look()
    assert admission._idle.since > since
    await Event("gate").set()
    await wait([blocked, opening])


@planned_cluster([("127.0.0.1", 2), ("127.0.0.1", 1)], plugin=with_quota)
async def test_a_fetch_is_forced_if_a_running_operand_waits_for_its_reader(c, s, a, b, monkeypatch):
    monkeypatch.setattr("dask_marsched.worker.admission.PATIENCE", 0)
    x = c.submit(array, 1, workers=[b.address], key="x")
    await wait(x)
    blocked = c.submit(blocked_until, "gate", workers=[a.address], key="blocked")
    await async_poll_for(lambda: bool(a.state.executing), 5)
    leave_free(a, MB)
    opening = c.submit(opener, "gate", 8, x, workers=[a.address], key="opener")
    await wait([blocked, opening])
    assert counts_of(a)["throttled"] >= 1


@planned_cluster([("127.0.0.1", 2), ("127.0.0.1", 1)], plugin=with_quota)
async def test_inputs_are_fetched_when_there_is_room(c, s, a, b):
    gate = Event("gate")
    x = c.submit(array, 1, workers=[b.address], key="x")
    await wait(x)
    blocked = c.submit(gated, "gate", workers=[a.address], key="blocked", nbytes=8)
    await async_poll_for(lambda: bool(a.state.executing), 5)
    leave_free(a, 5 * MB)
    total = c.submit(np.sum, x, workers=[a.address], key="total")
    await async_poll_for(lambda: admission_of(a).counts["throttled"], 5)
    assert "x" not in a.data
    await gate.set()
    assert await total == 10 * MB / 8
    await blocked


@planned_cluster([("127.0.0.1", 1), ("127.0.0.1", 1)], plugin=with_quota)
async def test_small_inputs_are_fetched_even_if_nothing_is_free(c, s, a, b):
    xs = [c.submit(operator.mul, n, 2, workers=[b.address]) for n in range(3)]
    empty = c.submit(np.empty, 0, workers=[b.address])
    await wait([*xs, empty])
    assert s.tasks[empty.key].nbytes == 0
    leave_free(a, -50 * MB)
    assert admission_of(a).quota.held == 0  # nothing could be evicted either
    readers = [c.submit(inc, x, workers=[a.address]) for x in xs]
    assert await c.gather(readers) == [1, 3, 5]
    assert await c.submit(len, empty, workers=[a.address]) == 0
    assert counts_of(a)["throttled"] == 0


@planned_cluster([("127.0.0.1", 1), ("127.0.0.1", 1)], plugin=with_quota)
async def test_spilled_results_are_sent(c, s, a, b):
    x = c.submit(array, 4, workers=[a.address], key="x")
    await wait(x)
    assert a.data.evict("x") > 0
    leave_free(a, MB)
    assert await c.submit(np.sum, x, workers=[b.address], key="sum") == 4 * 10 * MB / 8
    assert "x" in a.data.slow
    assert counts_of(a)["transfers"] == 0


@planned_cluster(ONE, plugin=with_quota)
async def test_seceded_tasks_hold_nothing_back(c, s, a):
    def outer():
        with worker_client() as client:
            return client.submit(array, 5, 20 * MB).result()

    await known(c, array, 5, 20 * MB)
    leave_free(a, MB)
    np.testing.assert_array_equal(await c.submit(outer), array(5, 20 * MB))
    assert_nothing_is_left(a)


@planned_cluster(TWO_THREADS, plugin=with_quota)
async def test_failing_and_cancelled_tasks_leave_nothing_behind(c, s, a):
    failing = [c.submit(operator.truediv, n, 0) for n in range(5)]
    await wait(failing)
    blocked = c.submit(gated, "gate")
    await async_poll_for(lambda: bool(a.state.executing), 5)
    blocked.release()
    failing.clear()
    await Event("gate").set()
    await async_poll_for(lambda: not a.state.tasks, 5)
    assert_nothing_is_left(a)


@planned_cluster(ONE, plugin=lambda: with_quota(interrupt=True))
async def test_tasks_cancelled_before_they_start_leave_nothing_behind(c, s, a):
    execute = a.execute

    async def cancelled_first(key, *, stimulus_id):
        await c.cancel(futures)
        await async_poll_for(lambda: a.state.tasks[key].state == "cancelled", 5)
        return await execute(key, stimulus_id=stimulus_id)

    a.execute = cancelled_first
    futures = [c.submit(blocked_until, "never", key="blocked")]
    await async_poll_for(lambda: futures[0].cancelled() and not a.state.tasks, 5)
    a.execute = execute
    assert counts_of(a)["admitted"] == 1
    assert_nothing_is_left(a)


@planned_cluster(ONE, plugin=with_quota)
async def test_working_space_is_released_if_inputs_cannot_be_read(c, s, a, monkeypatch):
    async def fails(ts):
        raise ZeroDivisionError("on purpose")

    admission = admission_of(a)
    x = c.submit(gated, "gate", key="x")
    await async_poll_for(lambda: "x" in a.active_keys, 5)  # its own inputs have been read
    admission.quota.grant(MemoryRequest("x", MemoryNeed(1, 2, 3)))
    monkeypatch.setattr(admission.host, "_load", fails)
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        await admission.host._execute("x", stimulus_id="test")
    assert admission.quota.grants == {"x": MemoryNeed(output=2)}
    await Event("gate").set()
    await wait(x)
    assert_nothing_is_left(a)


@planned_cluster([("127.0.0.1", 2, {"resources": {"R": 1}})], plugin=with_quota)
async def test_resources_are_kept(c, s, a):
    gate = Event("gate")
    blocked = c.submit(gated, "gate", resources={"R": 1}, key="blocked")
    other = c.submit(inc, 1, resources={"R": 1}, key="other")
    free = c.submit(inc, 2, key="free")
    assert await free == 3
    assert a.state.tasks["other"].state == "constrained"
    await gate.set()
    assert await other == 2
    await blocked


@gen_cluster(client=True, nthreads=ONE)
async def test_after_an_exception_in_a_hook_dask_decides(c, s, a, monkeypatch, caplog):
    await c.register_plugin(with_quota())

    def broken(self, kind):
        raise ZeroDivisionError("broken on purpose")

    monkeypatch.setattr(NeedModel, "output", broken)
    assert await c.gather(c.map(inc, range(10))) == list(range(1, 11))
    report = admission_of(a).report()
    assert report["exceptions"] == {"choose": pytest.approx(10, abs=10)}
    assert report["exceptions"]["choose"] >= 1
    assert report["last_exception"] == "ZeroDivisionError: broken on purpose"
    assert caplog.text.count("choose failed") == 1


@planned_cluster(TWO_THREADS, plugin=with_quota)
async def test_working_space_is_learned(c, s, a):
    if not admission_of(a)._meter.available:
        pytest.skip("this kernel does not tell")

    def reducing(n):
        return float(np.ones(50 * MB // 8).sum()) + n

    await wait(c.map(reducing, range(3)))
    needs, kind = admission_of(a).needs, OperandKind("reducing", 0, 0)
    assert needs.seen(kind) == 3
    assert 20 * MB < needs.footprint(kind) < 120 * MB
    assert needs.output(kind) < MB


def allocating(gate, nbytes):
    Event(gate).wait()
    return int(np.ones(nbytes, dtype="u1")[-1])


@planned_cluster(TWO_THREADS, plugin=with_quota)
async def test_results_released_meanwhile_do_not_hide_working_space(c, s, a):
    admission = admission_of(a)
    if not admission._meter.available:
        pytest.skip("this kernel does not tell")
    admission.quota.limit = 32 * 100 * MB
    old = c.submit(array, 1, 100 * MB, key="old")
    await wait(old)
    running = c.submit(allocating, "gate", 100 * MB, key="allocating-1")
    await async_poll_for(lambda: "allocating" in admission._footprints.prefixes(), 5)
    old.release()
    await async_poll_for(lambda: "old" not in a.data, 5)
    gc.collect()
    await Event("gate").set()
    await running
    assert admission.needs.footprint(OperandKind("allocating", 0, 0)) > 80 * MB


@planned_cluster(TWO_THREADS, plugin=with_quota)
async def test_releasing_a_view_frees_nothing(c, s, a):
    admission = admission_of(a)
    admission.quota.limit = 32 * 100 * MB
    whole = c.submit(array, 1, 100 * MB, key="whole")
    view = c.submit(operator.getitem, whole, slice(None), key="view")
    await wait(view)
    admission._refresh(exact=True)
    before = admission.quota.used
    view.release()
    await async_poll_for(lambda: "view" not in a.data, 5)
    admission._refresh()
    assert admission.quota.used > before - 20 * MB


# --- the store ----------------------------------------------------------------------------


def inner(n):
    return np.zeros((n + 2, n + 2))[1:-1, 1:-1]


@planned_cluster(ONE, plugin=with_quota)
async def test_copies_made_for_sending_count(c, s, a):
    host = admission_of(a).host
    whole = c.submit(array, 1, key="whole")
    apart = c.submit(inner, 1000, key="apart")
    await wait([whole, apart])
    sending = object()
    host._outgoing[sending] = ["whole", "apart", "gone"]
    assert host.transfers() == 8 * MB
    a.data.evict("whole")
    assert host.transfers() == 18 * MB
    del host._outgoing[sending]
    assert host.transfers() == 0


@planned_cluster(ONE, plugin=with_quota)
async def test_the_store_obeys_the_quota(c, s, a):
    stored = a.data
    assert type(stored) is WorkerStore
    target = int(0.6 * a.memory_manager.memory_limit)
    x = c.submit(array, 1, key="array-1")
    await wait(x)
    leave_free(a, -50 * MB)
    assert await c.submit(inc, 1) == 2
    await async_poll_for(lambda: stored.is_spilled(x.key), 5)
    assert await c.submit(np.sum, x) == 10 * MB / 8
    report = a.plugins["marsched"].report()
    assert report["store"]["spilled"] >= 10 * MB
    assert report["store"]["written_bytes"] >= 10 * MB
    assert "store" not in report["reasons"]
    await c.unregister_scheduler_plugin("marsched")
    await async_poll_for(lambda: type(a.data) is SpillBuffer, 5)
    assert type(a.state) is WorkerState
    assert a.data.n == target
    np.testing.assert_array_equal(await c.gather(x), array(1))
    await c.register_plugin(with_quota())


@gen_cluster(client=True, nthreads=ONE)
async def test_a_worker_that_closes_keeps_its_store(c, s, a):
    await c.register_plugin(with_quota())
    x = await c.scatter(array(1), hash=False)
    assert a.data.evict(x.key) > 0
    await a.close()
    assert type(a.data) is WorkerStore
    assert "marsched" not in a.plugins


# --- shared with the host -----------------------------------------------------------------


@planned_cluster(ONE, plugin=lambda: with_quota(store_shared=True))
async def test_without_a_nanny_nothing_is_shared(c, s, a):
    plugin = a.plugins["marsched"]
    await async_poll_for(lambda: "no nanny" in plugin.report()["reasons"]["shared"], 5)
    assert plugin.report()["shared"] is None
    assert counts_of(a)["limit"] > 0


def report_there(dask_worker):
    return dask_worker.plugins["marsched"].report()


def resident_there(dask_worker):
    """Return the memory of the process with all shared pages, bytes."""
    return dask_worker.monitor.proc.memory_info().rss


def learned_there(dask_worker):
    """Return what `sums` of five arrays was found to take, bytes."""
    return admission_of(dask_worker).needs.footprint(OperandKind("sums", 5, 100 * MB))


def is_sharing(dask_worker):
    plugin = dask_worker.plugins.get("marsched")
    return plugin is not None and plugin.report()["shared"] is not None


async def shares(dask_worker):
    await async_poll_for(lambda: is_sharing(dask_worker), 20)


def sums(*arrays):
    return float(sum(x.sum() for x in arrays))


# The active memory manager drops one of two copies after two seconds, the owner's or the peer's.
NOT_REDUCED = {"distributed.scheduler.active-memory-manager.start": False}


@pytest.mark.extended
@gen_cluster(client=True, nthreads=[], timeout=90, config=NOT_REDUCED)
async def test_results_are_shared_under_the_quota(c, s):
    await c.register_plugin(with_quota(store_shared=True))
    options = {"nthreads": 1, "memory_limit": "1 GB"}
    async with Nanny(s.address, **options) as owner, Nanny(s.address, **options) as reader:
        await c.run(shares)
        there, here = owner.worker_address, reader.worker_address
        xs = [c.submit(array, n, 20 * MB, workers=[there], pure=False) for n in range(5)]
        await wait(xs)
        for n in range(3):  # the second and third time everything is mapped already
            total = c.submit(sums, *xs, workers=[here], key=f"sums-{n}")
            assert await total == 10 * 20 * MB / 8
        reports = await c.run(report_there)
        shared = reports[here]["shared"]
        assert (shared["by_handle"], shared["by_comm"]) == (5, 0)
        assert shared["bytes_by_handle"] == 100 * MB
        assert shared["mapped"] >= 100 * MB
        assert reports[there]["shared"]["published"] >= 100 * MB
        # What the peer holds is the peer's: here it is neither held nor unmanaged.
        assert reports[here]["quota"]["held"] < MB
        resident = await c.run(resident_there, workers=[here])
        assert reports[here]["quota"]["used"] < resident[here] - 80 * MB
        assert reports[there]["quota"]["held"] >= 100 * MB
        for report in reports.values():
            assert report["reasons"].keys() == {"kernels", "interrupts", "adoption"}
            assert report["quota"]["exceptions"] == report["shared"]["exceptions"] == {}
        # To add up what is mapped takes no working space.
        learned = await c.run(learned_there, workers=[here])
        assert learned[here] < 40 * MB
        text = str(await status(c))
        assert "received by handle 95.37 MiB, by TCP 0 B" in text
        assert reports[there]["shared"]["ahead"] == 0
        # What the plan has read by a neighbour is there before anybody asks.
        y = c.submit(array, 1, 40 * MB, workers=[here], pure=False)
        await wait(y)
        with dask.annotate(workers=[there]):
            x = dask.delayed(array)(3, 20 * MB)
        assert await c.compute(dask.delayed(sums)(x, y)) == (3 * 20 + 40) * MB / 8
        reports = await c.run(report_there)
        assert reports[there]["shared"]["ahead"] == reports[there]["shared"]["ahead_read"] == 1
        assert reports[here]["shared"]["by_handle"] == 6
        await c.unregister_scheduler_plugin("marsched")
        assert await c.submit(sums, *xs, workers=[here], key="again") == 10 * 20 * MB / 8


# --- without the package ------------------------------------------------------------------


@pytest.mark.extended
def test_a_worker_without_the_package_starts(start_scheduler, start):
    address, _ = start_scheduler()
    with Client(address) as client:
        client.register_plugin(with_quota())
        code = WITHOUT_PACKAGE + "from distributed.cli.dask_worker import main; main()"
        start(sys.executable, "-c", code, address, "--no-dashboard", "--no-nanny")
        client.wait_for_workers(1, timeout=60)
        assert client.submit(inc, 1).result() == 2
        (parts,) = status(client).workers_lacking.values()
        assert parts == ("quota",)
