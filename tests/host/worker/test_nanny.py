"""Memory that nannies own, and how it is counted. No module of its own may have a cluster here."""

import asyncio
import os
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from distributed import Nanny, wait
from distributed.utils_test import async_poll_for, gen_cluster

from dask_marsched.host.scheduler.adopters import KEPT
from dask_marsched.host.worker import data as store
from dask_marsched.host.worker.nanny import SegmentOwner
from dask_marsched.host.worker.transfer import HandleTransfer, misfits
from dask_marsched.store import file_ranges
from dask_marsched.store.segment import Handle, SegmentAddress, create_segment, open_segment
from tests.host.worker.sharing import MIB, Sharing, numbers, set_up, state, total


@gen_cluster(nthreads=[("", 1)], worker_kwargs={"memory_limit": "400 MB"})
async def test_without_a_nanny_nothing_is_shared(s, a):
    data = store.install(a)
    before = set(a.handlers), set(vars(a)), set(vars(a.monitor))
    sharing = HandleTransfer(a, data, cap=MIB, least=1, caught=pytest.fail)
    sharing.start()
    await asyncio.wait([sharing.starting])
    assert "no nanny" in sharing.reason
    await sharing.uninstall()
    assert (set(a.handlers), set(vars(a)), set(vars(a.monitor))) == before


@gen_cluster(nthreads=[("", 1)])
async def test_results_with_numpy_integers_in_their_keys_are_announced(s, a):
    data = store.install(a)
    sharing = HandleTransfer(a, data, cap=MIB, least=1, caught=pytest.fail, announces=True)
    handle = Handle(SegmentAddress(1, 2, b"3"), 4, 5, b"", (6,), plain=True)
    key = ("cholesky", np.int64(0))  # as `da.linalg.cholesky` has them
    sharing._announce(key, handle, 7)
    await async_poll_for(lambda: s.get_events(KEPT), 5)
    ((_, (address, told, message, stamp)),) = s.get_events(KEPT)
    assert (address, told, stamp) == (a.address, key, 7)
    assert Handle.from_message(message) == handle
    store.uninstall(a, data)


@gen_cluster(nthreads=[("", 1)])
async def test_another_worker_is_found(s, a):
    assert misfits(a) == []

    class Other:
        handlers: dict = {}
        monitor = None

    found = misfits(Other())
    assert "worker has no attribute gather_dep" in found
    assert "worker.monitor.get_process_memory is missing" in found


def test_segments_of_the_past_are_kept_as_long_as_somebody_reads():
    nanny = SimpleNamespace(pid=1)
    past = SegmentOwner(MIB)
    past.segment = create_segment(MIB)
    owner = SegmentOwner(MIB, past.retire())
    assert past.segment is None
    (segment,) = owner.retire()
    owner = SegmentOwner(MIB, [segment])
    reader = open_segment(segment)
    file_ranges.lock_read(reader, 4096, 10)
    for _ in range(3):
        owner._sweep(nanny, 1)
    os.close(reader)
    reader = open_segment(segment)  # somebody else takes over
    owner._sweep(nanny, 1)
    file_ranges.lock_read(reader, 4096, 10)
    owner._sweep(nanny, 1)
    os.fstat(segment.fd)
    os.close(reader)
    owner._sweep(nanny, 1)
    owner._sweep(nanny, 1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(segment.fd)
    assert owner.retire() == []


def test_segments_of_the_past_are_kept_while_the_worker_is_restarted():
    segment = create_segment(MIB)
    owner, nanny = SegmentOwner(MIB, [segment]), SimpleNamespace(pid=None)
    for _ in range(3):
        owner._sweep(nanny, 1)
    nanny.pid = 2  # it has started, and is not yet an owner's
    for _ in range(3):
        owner._sweep(nanny, 1)
    assert owner.retire() == [segment]
    os.close(segment.fd)


@pytest.mark.extended
@gen_cluster(
    client=True,
    nthreads=[],
    config={
        "distributed.worker.memory.monitor-interval": "10ms",
        # nobody drops what was mapped before it was looked at
        "distributed.scheduler.active-memory-manager.start": False,
    },
    # Two processes are started: on a machine that others use too, that alone can take a minute.
    timeout=115,
)
async def test_a_worker_is_not_killed_for_its_peers_memory(c, s):
    large = Nanny(s.address, nthreads=1, memory_limit="4 GB", name="large")
    small = Nanny(s.address, nthreads=1, memory_limit="400 MB", name="small")
    async with large, small:
        await c.register_plugin(Sharing(cap=600 * MIB))
        # Where nothing is shared all is sent, and the small worker is killed again and again.
        assert set((await c.run(set_up)).values()) == {None}
        xs = [c.submit(numbers, 4 * MIB, workers=["large"], pure=False) for _ in range(10)]
        await wait(xs)
        pid = small.pid
        y = c.submit(total, *xs, workers=["small"])
        assert await y == 40 * MIB
        for _ in range(3):
            await asyncio.sleep(0.05)  # workload: let the nanny look
        answers = await c.run(state, workers=[small.worker_address])
        memory = answers[small.worker_address]
        assert memory["stock memory"] > 400e6, "stock would have killed it"
        assert memory["memory"] < 300e6
        assert small.pid == pid
        assert s.workers[small.worker_address].status.name == "running"


def resident_while_read(*xs):
    """Return what the kernel counts while a task has touched all of its inputs."""
    for _ in range(5):  # workload: let the nanny look
        total(*xs)
    return psutil.Process().memory_info().rss


@pytest.mark.extended
@gen_cluster(
    client=True,
    nthreads=[],
    config={"distributed.worker.memory.monitor-interval": "10ms"},
    timeout=115,
)
async def test_a_worker_is_not_killed_for_pages_of_its_spill_file(c, s):
    async with Nanny(s.address, nthreads=1, memory_limit="400 MB") as nanny:
        await c.register_plugin(Sharing())
        assert set((await c.run(set_up)).values()) == {None}
        pid, xs = nanny.pid, []
        for n in range(10):
            xs.append(c.submit(numbers, 4 * MIB, key=f"x-{n}"))
            await wait(xs)
            await c.run(lambda dask_worker: [dask_worker.data.evict(k) for k in dask_worker.data])
        assert await c.submit(resident_while_read, *xs) > 400e6, "stock would have killed it"
        assert nanny.pid == pid
