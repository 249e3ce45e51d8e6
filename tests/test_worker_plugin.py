"""The plugin on real workers: set-up, what is left alone, removal, and sharing through nannies."""

import asyncio
import gc
import sys
import weakref
from types import SimpleNamespace
from unittest import mock

import dask
import numpy as np
import pytest
from distributed import Client, Event, Nanny, Worker, wait
from distributed.comm import CommClosedError
from distributed.protocol.compression import compressions
from distributed.spill import SpillBuffer
from distributed.utils_test import async_poll_for, gen_cluster, inc
from distributed.worker_state_machine import WorkerState

from dask_marsched.config import Settings
from dask_marsched.host.batched_messages import COMPUTE
from dask_marsched.host.worker.data import WorkerStore
from dask_marsched.policies.memory_needs import OperandKind
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from dask_marsched.status import status
from dask_marsched.worker_plugin import MarsWorkerPlugin
from tests.harness import check, planned_cluster, plugin_of, report_of
from tests.processes import WITHOUT_PACKAGE
from tests.worker.quota import (
    MB,
    ONE,
    TWO_THREADS,
    admission_of,
    array,
    counts_of,
    gated,
    known,
    leave_free,
    with_parts,
    with_quota,
)


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
async def test_with_all_parts_off_workers_only_defer_messages(c, s, a):
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


@gen_cluster(client=True, nthreads=ONE, worker_kwargs={"memory_limit": "1GB"})
async def test_a_worker_without_the_compression_spills_uncompressed(c, s, a):
    """An unknown name would fail each spill, and the worker would pause for ever."""
    with mock.patch.dict(compressions):
        compressions.pop("snappy", None)
        await c.register_plugin(with_quota(store_compression="snappy"))
    assert a.data.slow.compression is None
    assert "no compression: snappy is not installed on the worker" in str(await status(c))


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


@gen_cluster(client=True, nthreads=ONE)
async def test_a_worker_whose_setup_fails_is_left_unchanged(c, s, a, monkeypatch, caplog):
    monkeypatch.setattr("dask_marsched.worker.kernels.Kernels", None)
    await c.register_plugin(with_all_parts())
    report = a.plugins["marsched"].report()
    assert not any(report[part] for part in report.keys() - {"reasons"})
    assert all("TypeError" in reason for reason in report["reasons"].values())
    assert (type(a.state), type(a.data)) == (WorkerState, SpillBuffer)
    assert await c.submit(inc, 1) == 2
    assert [record.name for record in caplog.records].count("dask_marsched") == 1


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


@gen_cluster(client=True, nthreads=ONE)
async def test_a_worker_that_closes_keeps_its_store(c, s, a):
    await c.register_plugin(with_quota())
    x = await c.scatter(array(1), hash=False)
    assert a.data.evict(x.key) > 0
    await a.close()
    assert type(a.data) is WorkerStore
    assert "marsched" not in a.plugins


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
