"""Same-host transfer, between real worker processes with nannies."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys

import pytest
from distributed import wait
from distributed.utils_test import async_poll_for, inc

from dask_marsched.host.worker import transfer
from dask_marsched.host.worker.transfer import OPERATION
from dask_marsched.store import array_memory
from dask_marsched.store.presence import claim
from tests.host.worker.sharing import (
    MIB,
    Sharing,
    Workers,
    checked,
    cluster,
    made,
    numbers,
    overwrite,
    set_up,
    total,
)
from tests.store.arrays import kinds
from tests.store.peers import segments
from tests.store.test_arena import needs_unshare


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


@pytest.mark.extended
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


def test_writes_stay_private(workers):
    x = workers.on(0, numbers, MIB)
    wait(x)
    assert workers.on(1, overwrite, x).result() == MIB
    assert workers.on(0, total, x).result() == MIB


def be_tidy(seconds):
    """Run in a worker: set for how long memory waits to be used again; return it as it was."""
    before, transfer._TIDY = transfer._TIDY, seconds
    return before


def test_memory_that_is_not_used_again_goes_back(client, workers):
    (before,) = set(client.run(be_tidy, 0.05).values())
    try:
        x = workers.on(0, numbers, MIB)
        wait(x)
        assert workers.on(1, total, x).result() == MIB
        assert workers[0]["filled"] >= 8 * MIB
        del x
        wait_until(lambda: workers[0]["filled"] == 0, 30)
    finally:
        client.run(be_tidy, before)


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
    again = [after[how] - before[how] for how in ("recycled", "made here")]
    assert sum(again) >= 4
    assert after["filled"] <= max(before["filled"], 16 * MIB)


def wait_until(condition, seconds=10):
    async def poll():
        await async_poll_for(condition, seconds)

    asyncio.run(poll())
    return True


def test_shared_pages_count_once(workers):
    assert wait_until(lambda: not workers[0]["live"] and not workers[1]["mapped"])
    # without the pages that wait for their next array, which may go or be used
    base = [worker["memory"] - worker["filled"] for worker in (workers[0], workers[1])]
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


def test_kinds_that_peers_ask_for_are_published_at_once(workers):
    before = workers[0]
    for i in range(4):
        x = workers.on(0, numbers, 2 * MIB, float(i), key=f"wanted-{i}")
        wait(x)
        if i == 2:  # two were asked for: nobody has asked for this one yet
            assert workers[0]["ahead"] - before["ahead"] == 1
            assert workers[0]["published"] - before["published"] == 3
        assert workers.on(1, overwrite, x).result() == 2 * i * MIB
        assert workers.on(0, overwrite, x).result() == 2 * i * MIB
    after = workers[0]
    assert after["ahead"] - before["ahead"] == 2
    assert workers[1]["fallbacks"] == {}


@pytest.mark.skipif(not array_memory.native, reason="there was no compiler")
def test_results_that_will_be_asked_for_are_made_in_shared_memory(workers):
    before = workers[0]["made here"]
    for i in range(8):
        x = workers.on(0, numbers, 2 * MIB, float(i), key=f"made-{i}")
        wait(x)
        assert workers.on(1, overwrite, x).result() == 2 * i * MIB
        assert workers.on(0, overwrite, x).result() == 2 * i * MIB
    assert workers[0]["made here"] - before >= 1
    assert workers[1]["fallbacks"] == {}


@pytest.mark.skipif(not array_memory.native, reason="there was no compiler")
def test_unrequested_arrays_in_shared_memory_are_published_on_request(
    workers,
):
    before = workers[0]
    for i, kind in enumerate(["pear", "plum", "fig", "quince", "sloe", "medlar"]):
        x = workers.on(0, numbers, 2 * MIB, float(i), key=kind)
        wait(x)
        assert workers[0]["published"] - before["published"] == i
        assert workers.on(1, overwrite, x).result() == 2 * i * MIB
        assert workers.on(0, overwrite, x).result() == 2 * i * MIB
    after = workers[0]
    assert after["made here"] - before["made here"] >= 1
    assert after["ahead"] == before["ahead"]
    assert workers[1]["fallbacks"] == {}


# --- when it cannot be done ---------------------------------------------------------------


@pytest.mark.extended
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


@pytest.mark.extended
def test_chunks_that_cannot_be_mapped_are_sent():
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


def spill(key, dask_worker):
    dask_worker.data.evict(key)


async def fetch_keys(owner, keys, dask_worker):
    return sorted(await dask_worker.plugins["sharing"].transfer.fetch(owner, keys))


async def become_own(key, nbytes, dask_worker):
    """Run in a worker: wait until a result that it has mapped counts as its own."""
    store = dask_worker.plugins["sharing"].store
    await async_poll_for(lambda: store.fast.weights[key] >= nbytes, 10)
    return [some.keys for some in store.evictable()]


@pytest.mark.extended
@pytest.mark.parametrize("goes", [False, True])
def test_chunks_without_an_owner_are_of_those_who_have_mapped_them(goes):
    with cluster(Sharing(), n_workers=3) as client:
        workers = Workers(client)
        owner, middle, reader = workers.addresses
        held = [workers.on(0, numbers, MIB, float(i), key=f"x{i}") for i in range(5)]
        own = workers.on(1, numbers, MIB, key="own")
        wait([own, *(workers.on(1, total, x) for x in held)])
        if goes:
            nannies = client.cluster.workers.values()
            client.sync(next(n for n in nannies if n.worker_address == owner).close)
        for i in range(4):
            if not goes:
                client.run(spill, f"x{i}", workers=[owner])
            evictable = client.run(become_own, f"x{i}", 8 * MIB, workers=[middle])[middle]
            assert (f"x{i}",) in evictable
            asked = client.run(fetch_keys, middle, [f"x{i}", "own"], workers=[reader])
            assert asked == {reader: ["own", f"x{i}"]}
        assert workers[2]["fallbacks"] == {}


@contextlib.contextmanager
def running_worker(address, *before):
    """Run ``dask worker`` by a command of its own."""
    command = [*before, sys.executable, "-m", "dask", "worker", address, "--nthreads", "1"]
    command += ["--host", "127.0.0.1", "--no-dashboard", "--name", "apart"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()  # a signal to end would not get through


@needs_unshare
async def ask_one_that_goes(address, dask_worker):
    """Run in a worker: hear that a peer is gone while a connection to it is tried."""
    transfer = dask_worker.plugins["sharing"].transfer
    asked = asyncio.create_task(transfer.fetch(address, ["x"]))
    await async_poll_for(lambda: bool(dask_worker.rpc._connecting.get(address)), 10)
    dask_worker.rpc.remove(address)
    return await asked


def test_a_dead_peer_is_not_tried_again(client, workers):
    """As always, that is by a connection, which would be tried for half a minute."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens, and nobody else can
        address = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
        with contextlib.closing(claim([address])):
            reader = workers.addresses[0]
            assert client.run(ask_one_that_goes, address, workers=[reader]) == {reader: None}


def set_handler_aside(dask_worker):
    dask_worker.aside = dask_worker.handlers.pop(OPERATION)


def put_handler_back(dask_worker):
    dask_worker.handlers[OPERATION] = dask_worker.aside
    del dask_worker.aside


async def fetch_from(owner, dask_worker):
    return await dask_worker.plugins["sharing"].transfer.fetch(owner, ["x"])


def test_a_peer_that_has_just_lost_the_plugin_is_no_failure(client, workers):
    owner, reader = workers.addresses
    before = workers[1]["fallbacks"]
    client.run(set_handler_aside, workers=[owner])
    try:
        assert client.run(fetch_from, owner, workers=[reader]) == {reader: {}}
    finally:
        client.run(put_handler_back, workers=[owner])
    after = workers[1]["fallbacks"]
    assert after.get("failed") == before.get("failed")


@pytest.mark.extended
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


@pytest.mark.extended
def test_peers_without_the_plugin_get_no_new_message():
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


# --- coming and going ---------------------------------------------------------------------


def traces(dask_worker):
    """Run in a worker: what the transfer has replaced there."""
    replaced = {"execute", "gather_dep", "get_process_memory"}
    found = (replaced & set(vars(dask_worker))) | (replaced & set(vars(dask_worker.monitor)))
    return sorted(found | ({OPERATION} & set(dask_worker.handlers)))


def traces_in_nanny(dask_worker):
    monitor = dask_worker.periodic_callbacks["memory_monitor"].callback
    return sorted(dask_worker.plugins), getattr(monitor, "__name__", "stock")


@pytest.mark.extended
def test_removal_restores_worker_and_nanny():
    before = segments([os.getpid()])  # the nannies are in this process
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
        assert len(segments([os.getpid()]) - before) == 2
        client.unregister_worker_plugin("sharing")
        assert (client.run(traces), client.run(traces_in_nanny, nanny=True)) == stock
        assert segments([os.getpid()]) == before
        # what was mapped is still there, and more can be computed
        assert workers.on(0, total, x).result() == MIB
        assert workers.on(1, total, x, workers.on(0, numbers, MIB)).result() == 2 * MIB
        client.register_plugin(Sharing())
        client.run(set_up)
        y = workers.on(0, numbers, MIB)
        wait(y)
        assert workers.on(1, total, y).result() == MIB
        assert workers[1]["by_handle"] == 1


@pytest.mark.extended
def test_nothing_is_left_of_killed_workers():
    before = segments([os.getpid()])
    with cluster(Sharing()) as client:
        workers = Workers(client)
        kept = workers.on(0, numbers, MIB, key="kept")
        wait(kept)
        read = client.submit(inc, kept, workers=[workers.addresses[1]])
        assert (read.result() == 2).all()
        pids = client.run(os.getpid)
        ours = segments([os.getpid(), *pids.values()]) - before
        os.kill(pids[workers.addresses[0]], signal.SIGKILL)
        # the peer has the chunk still, and what is left of the owner is its peers' alone
        assert client.submit(total, kept).result() == MIB
        wait_until(lambda: workers.addresses[0] not in Workers(client).addresses, 30)
        client.wait_for_workers(2)
        assert set(client.run(set_up).values()) == {None}
        workers = Workers(client)
        x = workers.on(0, numbers, MIB)
        wait(x)
        assert workers.on(1, total, x).result() == MIB
        ours |= segments([os.getpid()]) - before
        for pid in client.run(os.getpid).values():
            os.kill(pid, signal.SIGKILL)
    assert len(ours) == 3
    wait_until(lambda: not ours & segments())
