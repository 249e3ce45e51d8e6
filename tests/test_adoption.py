"""A worker's process dies by SIGKILL: others of its host take over what it had."""

import os
import signal
import time

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, KilledWorker, LocalCluster, wait

import dask_marsched
from dask_marsched.config import Settings
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin

MIB = 1 << 20


@pytest.fixture(scope="module")
def client():
    config = {
        "distributed.worker.profile.enabled": False,
        "distributed.scheduler.allowed-failures": 1,
    }
    with (
        dask.config.set(config),
        LocalCluster(
            n_workers=3, threads_per_worker=1, memory_limit="1GiB", dashboard_address=":0"
        ) as cluster,
        Client(cluster) as made,
    ):
        made.register_plugin(MarsSchedulerPlugin(settings=Settings(adopt="all")))
        yield made


def sharing(client):
    """Wait until all workers keep their results in shared memory."""
    deadline = time.monotonic() + 20

    def kept(dask_worker=None):
        plugin = dask_worker.plugins.get("marsched")
        return plugin is not None and plugin.report()["shared"] is not None

    while not all(client.run(kept, on_error="return").values()):
        assert time.monotonic() < deadline, client.run(
            lambda dask_worker: dask_worker.plugins["marsched"].report()
        )
        time.sleep(0.05)


def kill(client, worker):
    os.kill(client.run(os.getpid, workers=[worker])[worker], signal.SIGKILL)


def losses(client):
    return dask_marsched.status(client).details["recoveries"]


def mixed(x, i):
    """Results of several kinds."""
    return [x, {"n": x.sum(), "rows": x[:2]}, float(x.sum()), str(i)][i % 4]


def test_nothing_is_computed_again(client):
    sharing(client)
    rng = da.random.default_rng(0)
    x = client.persist(rng.random((4096, 1024), chunks=(256, 1024)))
    objects = client.map(lambda i: mixed(np.full((512, 512), i), i), range(16), pure=False)
    objects += client.map(mixed, objects[:1] * 4, range(4), pure=False)  # one is handed on
    wait([x, *objects])
    before = client.gather(objects), x.compute()
    held = client.has_what()
    victim = max(held, key=lambda worker: len(held[worker]))
    kill(client, victim)
    deadline = time.monotonic() + 20
    while not losses(client)["losses"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    after = client.gather(objects), x.compute()
    np.testing.assert_array_equal(before[1], after[1])
    for old, new in zip(before[0], after[0], strict=True):
        np.testing.assert_equal(new, old)
    # Who has taken over dies as well, long after: the memory is another process' by then.
    client.wait_for_workers(3, timeout=30)
    sharing(client)
    held = client.has_what()
    heir = max(held, key=lambda worker: len(held[worker]))
    kill(client, heir)
    while losses(client)["losses"] < 2:
        assert time.monotonic() < deadline + 30
        time.sleep(0.02)
    np.testing.assert_array_equal(before[1], x.compute())
    for old, new in zip(before[0], client.gather(objects), strict=True):
        np.testing.assert_equal(new, old)
    found = losses(client)
    assert found["results_adopted"] > 10
    assert (found["computed_again"], found["results_lost"]) == (0, 0)
    # What was taken over may be written to, as any result in Dask.
    assert float(x.map_blocks(lambda b: b.__imul__(0), dtype=float).sum().compute()) == 0.0
    assert dask_marsched.status(client).exceptions == {}


def test_in_the_middle_of_a_run(client):
    client.wait_for_workers(3, timeout=30)  # one comes back
    sharing(client)
    rng = da.random.default_rng(1)
    x = rng.random((6144, 2048), chunks=(512, 512))
    y = ((x - x.mean(axis=0)) ** 2).mean(axis=0)
    with dask.config.set(scheduler="sync"):
        expected = y.compute()
    future = client.compute(y)
    deadline = time.monotonic() + 20
    victim = None
    while victim is None:
        assert time.monotonic() < deadline
        busy = {w: keys for w, keys in client.has_what().items() if len(keys) > 3}
        victim = next(iter(busy), None)
    kill(client, victim)
    np.testing.assert_array_equal(future.result(timeout=60), expected)
    assert dask_marsched.status(client).exceptions == {}


def kill_own():
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_kills_its_workers_is_given_up_and_nothing_else(client):
    client.wait_for_workers(3, timeout=30)
    sharing(client)
    before = losses(client)
    kept = client.map(np.full, [(256, 256)] * 6, range(6), pure=False)
    wait(kept)
    killer = client.submit(kill_own, key="killer")
    reader = client.submit(len, [killer], key="reader")
    with pytest.raises(KilledWorker, match=r"run task 'killer' on 2 different workers"):
        reader.result(timeout=60)
    (row,) = dask_marsched.operands(client, key="reader").rows
    assert (row["state"], row["cause"]) == ("fatal", "killer")
    assert [int(x[0, 0]) for x in client.gather(kept)] == list(range(6))
    after = losses(client)
    assert after["losses"] >= before["losses"] + 2
    assert after["computed_again"] == before["computed_again"]
    assert dask_marsched.status(client).exceptions == {}
