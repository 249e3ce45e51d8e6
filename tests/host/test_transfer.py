"""Same-host transfer, between real worker processes with nannies."""

import asyncio
import contextlib
import os
import signal
import sys

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster, Nanny, WorkerPlugin, wait
from distributed.utils_test import async_poll_for, gen_cluster, inc

from dask_marsched.host import store
from dask_marsched.host.transfer import OPERATION, HandleTransfer, misfits
from tests.processes import running
from tests.store.arrays import kinds, same
from tests.store.peers import segments_in_the_system
from tests.store.test_arena import needs_unshare

MIB = 1 << 20
LEAST = 100_000  # bytes


class Sharing(WorkerPlugin):
    """Puts the store and the transfer into a worker, as the worker plugin of the package does."""

    name = "sharing"

    def __init__(self, cap=64 * MIB):
        self.cap = cap

    async def setup(self, worker):
        self.caught = []
        self.store = store.install(worker)
        self.transfer = HandleTransfer(
            worker,
            self.store,
            cap=self.cap,
            least=LEAST,
            caught=lambda where, error: self.caught.append((where, repr(error))),
        )
        self.transfer.start()

    async def teardown(self, worker):
        await self.transfer.uninstall()
        store.uninstall(worker, self.store)


def state(dask_worker):
    """Run in a worker: its counters."""
    plugin = dask_worker.plugins["sharing"]
    counters, arena = plugin.transfer.counters, plugin.transfer.arena
    assert plugin.caught == []
    return {
        **vars(counters),
        "fallbacks": {k: n for k, n in counters.fallbacks.items() if n},
        "published": arena.counters.published,
        "recycled": arena.counters.recycled,
        "refused": arena.counters.refused,
        "live": arena.live,
        "filled": arena.filled,
        "held": arena.held(),
        "orphaned": plugin.transfer.attachments.orphaned,
        "mapped": plugin.transfer.attachments.mapped,
        "memory": dask_worker.monitor.get_process_memory(),
        "stock memory": dask_worker.monitor.proc.memory_info().rss,
        "stored": {k: getattr(v, "nbytes", None) for k, v in plugin.store.fast.items()},
    }


async def set_up(dask_worker):
    """Run in a worker: wait until it shares; return why it does not."""

    def there():
        return hasattr(dask_worker.plugins.get("sharing"), "transfer")

    await async_poll_for(there, 30)
    sharing = dask_worker.plugins["sharing"].transfer
    await sharing.started()
    return sharing.reason


def made(kind):
    return kinds()[kind]


def numbers(n, value=1.0):
    return np.full(n, value)


def checked(got, kind):
    return same(got, kinds()[kind])


def overwrite(x):
    before = float(x.sum())
    x[:] = -1
    return before


def total(*arrays):
    return float(sum(x.sum() for x in arrays))


class Workers:
    """Two or more workers of a cluster, and what can be asked of them."""

    def __init__(self, client):
        self.client = client
        self.addresses = list(client.scheduler_info(n_workers=-1)["workers"])

    def __getitem__(self, i):
        return self.client.run(state, workers=[self.addresses[i]])[self.addresses[i]]

    def on(self, i, function, *args, key=None, **kwargs):
        return self.client.submit(
            function, *args, workers=[self.addresses[i]], pure=False, key=key, **kwargs
        )


@contextlib.contextmanager
def cluster(plugin=None, **options):
    defaults = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    config = {
        # nobody drops or moves what a test looks at
        "distributed.scheduler.active-memory-manager.start": False,
        "distributed.scheduler.work-stealing": False,
    }
    with (
        dask.config.set(config),
        LocalCluster(**{**defaults, **options}) as made,
        Client(made) as client,
    ):
        if plugin is not None:
            client.register_plugin(plugin)
            assert set(client.run(set_up).values()) == {None}
        yield client


@pytest.fixture(scope="module")
def client():
    with cluster(Sharing()) as made:
        yield made


@pytest.fixture
def workers(client):
    return Workers(client)


@pytest.mark.parametrize("kind", kinds())
def test_all_kinds_arrive_as_they_are(workers, kind):
    value = workers.on(0, made, kind)
    wait(value)
    assert workers.on(1, checked, value, kind).result()


def test_large_chunks_are_mapped_and_small_ones_sent(workers):
    before = workers[1]
    large, small = workers.on(0, numbers, MIB), workers.on(0, numbers, 10)
    wait([large, small])
    assert workers.on(1, total, large, small).result() == MIB + 10
    after = workers[1]
    assert after["by_handle"] - before["by_handle"] == 1
    assert after["bytes_by_handle"] - before["bytes_by_handle"] == 8 * MIB
    assert after["by_comm"] - before["by_comm"] == 1
    assert after["fallbacks"] == before["fallbacks"]


async def ask(owner, key, dask_worker):
    """Run in a worker: map a key from a certain peer, and return the sum of what came."""
    sharing = dask_worker.plugins["sharing"]
    received = await sharing.transfer._map_from(owner, [key])
    return {k: float(x.sum()) for k, x in received.items()}


def test_a_chunk_is_published_once_and_takes_the_place_of_the_private_one():
    with cluster(Sharing(), n_workers=3) as client:
        workers = Workers(client)
        x = workers.on(0, numbers, MIB, key="x")
        wait(x)
        readers = [workers.on(i, total, x) for i in (1, 2)]
        assert client.gather(readers) == [MIB, MIB]
        assert [workers[i]["published"] for i in range(3)] == [1, 0, 0]
        assert workers[0]["stored"] == {"x": 8 * MIB}
        assert workers[0]["memory"] - workers[1]["memory"] > 6 * MIB
        first, second, third = workers.addresses
        # whoever has mapped it tells where it is, and copies nothing
        assert client.run(ask, second, "x", workers=[third]) == {third: {"x": MIB}}
        assert [workers[i]["published"] for i in range(3)] == [1, 0, 0]
        # what one has written to is another chunk
        assert workers.on(0, overwrite, x).result() == MIB
        assert workers.on(1, overwrite, x).result() == MIB
        assert client.run(ask, first, "x", workers=[third]) == {third: {"x": -MIB}}
        assert client.run(ask, second, "x", workers=[third]) == {third: {"x": -MIB}}
        assert [workers[i]["published"] for i in range(3)] == [2, 1, 0]
        assert workers.on(2, total, x).result() == MIB


def test_writes_are_seen_by_nobody_else(workers):
    x = workers.on(0, numbers, MIB)
    wait(x)
    assert workers.on(1, overwrite, x).result() == MIB
    assert workers.on(0, total, x).result() == MIB


def test_memory_is_recycled(workers):
    before = workers[0]
    for i in range(5):
        x = workers.on(0, numbers, MIB, float(i))
        wait(x)
        y = workers.on(1, total, x)
        assert y.result() == i * MIB
        del x, y
        # released on both before the next
        assert wait_until(lambda: not workers[0]["live"] and not workers[1]["mapped"])
    after = workers[0]
    assert after["recycled"] - before["recycled"] >= 4
    assert after["filled"] <= max(before["filled"], 16 * MIB)


def wait_until(condition, seconds=10):
    async def poll():
        await async_poll_for(condition, seconds)

    asyncio.run(poll())
    return True


def test_shared_pages_count_once(workers):
    assert wait_until(lambda: not workers[0]["live"] and not workers[1]["mapped"])
    base = workers[0]["memory"], workers[1]["memory"]
    x = workers.on(0, numbers, 4 * MIB)
    wait(x)
    y = workers.on(1, total, x)
    assert y.result() == 4 * MIB
    owner, peer = workers[0], workers[1]
    assert owner["held"] >= 32 * MIB
    assert owner["memory"] - base[0] > 28 * MIB
    assert (peer["mapped"], peer["orphaned"]) == (32 * MIB, 0)
    assert peer["memory"] - base[1] < 10 * MIB
    assert peer["stock memory"] - peer["memory"] > 28 * MIB


# --- when it cannot be done ---------------------------------------------------------------


def test_without_room_chunks_are_sent():
    with cluster(Sharing(cap=10 * MIB)) as client:
        workers = Workers(client)
        x, y, z = (workers.on(0, numbers, MIB, float(i)) for i in range(3))
        wait([x, y, z])
        assert workers.on(1, total, x, y, z).result() == 3 * MIB
        assert (workers[1]["by_handle"], workers[1]["by_comm"]) == (1, 2)
        assert workers[1]["fallbacks"] == {"not published": 2}
        assert workers[0]["refused"] == 2


def lose_segment(dask_worker):
    """Run in a nanny: what a worker that maps for the first time cannot find any more."""
    owner = dask_worker.plugins["marsched-segment"]
    os.close(owner.segment.fd)
    owner.segment = None


def test_what_cannot_be_mapped_is_sent():
    with cluster(Sharing()) as client:
        workers = Workers(client)
        client.run(lose_segment, workers=[workers.addresses[0]], nanny=True)
        for i in range(5):
            x = workers.on(0, numbers, MIB, float(i))
            wait(x)
            assert workers.on(1, total, x).result() == i * MIB
        # it is not tried for ever
        assert workers[1]["fallbacks"] == {"failed": 3}
        assert workers[1]["by_comm"] == 5


@contextlib.contextmanager
def running_worker(address, *before):
    """Run ``dask worker`` by a command of its own."""
    command = [*before, sys.executable, "-m", "dask", "worker", address, "--nthreads", "1"]
    command += ["--host", "127.0.0.1", "--no-dashboard", "--name", "apart"]
    with running() as start:
        yield start(*command)


@needs_unshare
def test_workers_in_other_namespaces_are_sent_to():
    apart = ("unshare", "--user", "--map-root-user", "--pid", "--mount-proc", "--kill-child")
    with cluster(n_workers=1) as client:
        client.register_plugin(Sharing())
        with running_worker(client.scheduler.address, *apart):
            client.wait_for_workers(2, timeout=60)
            assert set(client.run(set_up).values()) == {None}
            workers = Workers(client)
            for there, here in ((0, 1), (1, 0)):
                x = workers.on(there, numbers, MIB)
                wait(x)
                assert workers.on(here, total, x).result() == MIB
                assert workers[here]["by_handle"] == 0
                assert workers[here]["by_comm"] == 1
                assert workers[here]["fallbacks"] == {}


def test_peers_without_the_plugin_are_told_nothing_new():
    with cluster() as client:
        workers = Workers(client)
        first, second = workers.addresses
        client.run(_install, workers=[first])
        client.run(set_up, workers=[first])
        for there, here in ((0, 1), (1, 0)):
            x = workers.on(there, numbers, MIB)
            wait(x)
            assert workers.on(here, total, x).result() == MIB
        assert workers[0]["by_comm"] == 1
        asked = client.run(lambda dask_worker: list(dask_worker.handlers), workers=[second])
        assert OPERATION not in asked[second]


async def _install(dask_worker):
    await dask_worker.plugin_add(plugin=Sharing(), name="sharing", catch_errors=False)


@gen_cluster(nthreads=[("", 1)], worker_kwargs={"memory_limit": "400 MB"})
async def test_without_a_nanny_nothing_is_shared(s, a):
    data = store.install(a)
    before = set(a.handlers), set(vars(a)), set(vars(a.monitor))
    sharing = HandleTransfer(a, data, cap=MIB, least=1, caught=pytest.fail)
    sharing.start()
    await sharing.started()
    assert "no nanny" in sharing.reason
    await sharing.uninstall()
    assert (set(a.handlers), set(vars(a)), set(vars(a.monitor))) == before


@gen_cluster(nthreads=[("", 1)])
async def test_another_worker_is_found(s, a):
    assert misfits(a) == []

    class Other:
        handlers: dict = {}
        monitor = None

    found = misfits(Other())
    assert "Worker has no attribute gather_dep" in found
    assert "the worker's monitor has no get_process_memory" in found


# --- coming and going ---------------------------------------------------------------------


def traces(dask_worker):
    """Run in a worker: what the transfer has replaced there."""
    replaced = {"gather_dep", "get_process_memory"}
    found = (replaced & set(vars(dask_worker))) | (replaced & set(vars(dask_worker.monitor)))
    return sorted(found | ({OPERATION} & set(dask_worker.handlers)))


def traces_in_nanny(dask_worker):
    monitor = dask_worker.periodic_callbacks["memory_monitor"].callback
    return sorted(dask_worker.plugins), getattr(monitor, "__name__", "stock")


def test_removing_it_restores_worker_and_nanny():
    with cluster() as client:
        workers = Workers(client)
        stock = client.run(traces), client.run(traces_in_nanny, nanny=True)
        client.register_plugin(Sharing())
        client.run(set_up)
        assert client.run(traces) != stock[0]
        assert client.run(traces_in_nanny, nanny=True) != stock[1]
        x = workers.on(0, numbers, MIB)
        wait(x)
        assert workers.on(1, total, x).result() == MIB
        assert len(segments_in_the_system() - SEGMENTS_BEFORE) >= 2
        client.unregister_worker_plugin("sharing")
        assert (client.run(traces), client.run(traces_in_nanny, nanny=True)) == stock
        # what was mapped is still there, and more can be computed
        assert workers.on(0, total, x).result() == MIB
        assert workers.on(1, total, x, workers.on(0, numbers, MIB)).result() == 2 * MIB
        client.register_plugin(Sharing())
        client.run(set_up)
        y = workers.on(0, numbers, MIB)
        wait(y)
        assert workers.on(1, total, y).result() == MIB
        assert workers[1]["by_handle"] == 1


SEGMENTS_BEFORE = segments_in_the_system()


def test_nothing_is_left_of_killed_workers():
    before = segments_in_the_system()
    with cluster(Sharing()) as client:
        workers = Workers(client)
        kept = workers.on(0, numbers, MIB, key="kept")
        wait(kept)
        read = client.submit(inc, kept, workers=[workers.addresses[1]])
        assert (read.result() == 2).all()
        pids = client.run(os.getpid)
        os.kill(pids[workers.addresses[0]], signal.SIGKILL)
        # the peer has the chunk still, and what is left of the owner is its peers' alone
        assert client.submit(total, kept).result() == MIB
        client.wait_for_workers(2)
        assert set(client.run(set_up).values()) == {None}
        workers = Workers(client)
        x = workers.on(0, numbers, MIB)
        wait(x)
        assert workers.on(1, total, x).result() == MIB
        for pid in client.run(os.getpid).values():
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: segments_in_the_system() <= before)


@gen_cluster(
    client=True,
    nthreads=[],
    config={"distributed.worker.memory.monitor-interval": "10ms"},
    timeout=90,
)
async def test_a_worker_is_not_killed_for_its_peers_memory(c, s):
    large = Nanny(s.address, nthreads=1, memory_limit="4 GB", name="large")
    small = Nanny(s.address, nthreads=1, memory_limit="400 MB", name="small")
    async with large, small:
        await c.register_plugin(Sharing(cap=600 * MIB))
        await c.run(set_up)
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
