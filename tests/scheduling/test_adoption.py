"""A worker's process dies by SIGKILL, and workers of its host adopt its results."""

import asyncio
import os
import signal

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, KilledWorker, LocalCluster, futures_of, wait
from distributed.utils_test import poll_for

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

    def kept(dask_worker=None):
        plugin = dask_worker.plugins.get("marsched")
        if plugin is None or plugin.report()["shared"] is None:
            return False
        plugin._parts["shared"].publisher.budget.worked(3600)  # what is kept is kept of long work
        return True

    poll_for(lambda: all(client.run(kept, on_error="return").values()), 20)


def kept_keys(dask_scheduler):
    return dask_scheduler.plugins["marsched"].kept()


def outlive(client, futures):
    """Wait until results are where they outlive their workers."""
    wait(futures)
    keys = {future.key for future in futures_of(futures)}
    poll_for(lambda: keys <= client.run_on_scheduler(kept_keys), 20)


def kill(client, worker):
    os.kill(client.run(os.getpid, workers=[worker])[worker], signal.SIGKILL)


def losses(client):
    return dask_marsched.status(client).details["recoveries"]


def mixed(x, i):
    """Results of several kinds."""
    moments = {"n": np.broadcast_to(i, x.shape), "mean": x + 1, "more": [x * x, x.T[::2]]}
    return [x, {"n": x.sum(), "rows": x[:2]}, float(x.sum()), str(i), moments][i % 5]


def test_nothing_is_computed_again(client):
    sharing(client)
    rng = da.random.default_rng(0)
    x = client.persist(rng.random((4096, 1024), chunks=(256, 1024)))
    objects = client.map(lambda i: mixed(np.full((512, 512), i), i), range(20), pure=False)
    objects += client.map(mixed, objects[:1] * 4, range(4), pure=False)  # one is handed on
    outlive(client, [x, *objects])
    # Not `x.compute()`: it leaves copies of chunks on one worker, which are not kept if the worker
    # that keeps the chunk dies first.
    chunks = futures_of(x)
    before = client.gather(objects), client.gather(chunks)
    held = client.has_what()
    victim = max(held, key=lambda worker: len(held[worker]))
    kill(client, victim)
    poll_for(lambda: losses(client)["losses"] >= 1, 20)
    after = client.gather(objects), client.gather(chunks)
    np.testing.assert_array_equal(before[1], after[1])
    for old, new in zip(before[0], after[0], strict=True):
        np.testing.assert_equal(new, old)
    # Who has taken over dies as well, long after: the memory is another process' by then.
    client.wait_for_workers(3, timeout=60)
    sharing(client)
    outlive(client, [x, *objects])
    held = client.has_what()
    heir = max(held, key=lambda worker: len(held[worker]))
    kill(client, heir)
    poll_for(lambda: losses(client)["losses"] >= 2, 30)
    np.testing.assert_array_equal(before[1], client.gather(chunks))
    for old, new in zip(before[0], client.gather(objects), strict=True):
        np.testing.assert_equal(new, old)
    found = losses(client)
    assert found["results_adopted"] > 10
    assert (found["computed_again"], found["results_lost"]) == (0, 0)
    # What was taken over may be written to, as any result in Dask.
    assert float(x.map_blocks(lambda b: b.__imul__(0), dtype=float).sum().compute()) == 0.0
    assert dask_marsched.status(client).exceptions == {}


KEPT = []  # in each worker


def keep(i):
    x = np.full(MIB, float(i))
    KEPT.append(x)
    return x


def change():
    for x in KEPT:
        np.negative(x, out=x)


@pytest.mark.extended
def test_results_changed_after_they_were_returned_are_adopted_unchanged(client):
    client.wait_for_workers(3, timeout=60)
    sharing(client)
    victim = next(iter(client.nthreads()))
    kept = client.map(keep, range(1, 7), workers=[victim], pure=False)
    outlive(client, kept)
    again = losses(client)["computed_again"]
    client.submit(change, workers=[victim], pure=False).result()
    kill(client, victim)
    poll_for(lambda: victim not in client.scheduler_info()["workers"], 20)
    sums = client.gather(client.map(np.sum, kept, pure=False))
    assert sums == [float(i * MIB) for i in range(1, 7)]
    assert losses(client)["computed_again"] == again


@pytest.mark.extended
def test_death_in_the_middle_of_a_run(client):
    client.wait_for_workers(3, timeout=60)  # one comes back
    sharing(client)
    rng = da.random.default_rng(1)
    x = rng.random((6144, 2048), chunks=(512, 512))
    y = ((x - x.mean(axis=0)) ** 2).mean(axis=0)
    with dask.config.set(scheduler="sync"):
        expected = y.compute()
    future = client.compute(y)
    busy = []

    def found():
        busy.extend(worker for worker, keys in client.has_what().items() if len(keys) > 3)
        return bool(busy)

    poll_for(found, 20)
    kill(client, busy[0])
    np.testing.assert_array_equal(future.result(timeout=60), expected)
    assert dask_marsched.status(client).exceptions == {}


def kill_own():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.extended
def test_only_a_task_that_kills_its_workers_fails(client):
    client.wait_for_workers(3, timeout=60)
    sharing(client)
    before = losses(client)
    kept = client.map(np.full, [(256, 256)] * 6, range(6), pure=False)
    outlive(client, kept)
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


def stop_looking(dask_worker):
    dask_worker.periodic_callbacks["find-missing"].stop()


def fetching(dask_worker):
    return bool(dask_worker.state.in_flight_tasks)


def where_kept(key, dask_scheduler):
    (where,) = dask_scheduler.plugins["marsched"]._failover._adoption._kept[key].values()
    return where


async def take_over(key, where, gone, dask_worker):
    answer = await dask_worker.handlers["marsched_adopt"](chunks=[(key, *where)], gone=gone)
    accept = dask_worker.stream_handlers["marsched_adopted"]
    await accept(keys=[key], offer=answer["offer"], run_id=1, gone=gone)
    on_its_way = {ts.key for ts in dask_worker.state.in_flight_tasks}
    return answer["adopted"], on_its_way, set(dask_worker.state.in_flight_workers)


@pytest.mark.extended
def test_an_adopting_worker_does_not_fetch_the_result(client):
    # Dask's worker closes for good where the end of a fetch finds the task forgotten.
    client.wait_for_workers(3, timeout=60)
    sharing(client)
    victim, reader, _ = client.has_what()
    pid = client.run(os.getpid, workers=[victim])[victim]
    x = client.submit(np.full, (512, 512), 5.0, workers=[victim], allow_other_workers=True)
    outlive(client, [x])
    where = client.run_on_scheduler(where_kept, x.key)
    os.kill(pid, signal.SIGSTOP)
    try:
        total = client.submit(np.sum, x, workers=[reader])
        poll_for(lambda: client.run(fetching, workers=[reader])[reader], 20)
        found = client.run(take_over, x.key, where, victim, workers=[reader])[reader]
        assert found == ([x.key], set(), set())
    finally:
        os.kill(pid, signal.SIGCONT)
    assert total.result(timeout=20) == 5.0 * 512 * 512
    assert dask_marsched.status(client).exceptions == {}


@pytest.mark.extended
def test_workers_waiting_for_a_result_get_its_new_location_at_once(client):
    client.wait_for_workers(3, timeout=60)
    sharing(client)
    client.run(stop_looking)  # who is not told waits for ever
    victim, reader, _ = client.has_what()
    pid = client.run(os.getpid, workers=[victim])[victim]
    before = losses(client)
    x = client.submit(np.full, (512, 512), 3.0, workers=[victim], allow_other_workers=True)
    outlive(client, [x])
    os.kill(pid, signal.SIGSTOP)
    total = client.submit(np.sum, x, workers=[reader])
    poll_for(lambda: client.run(fetching, workers=[reader])[reader], 20)
    os.kill(pid, signal.SIGKILL)
    assert total.result(timeout=20) == 3.0 * 512 * 512
    after = losses(client)
    assert after["results_adopted"] > before["results_adopted"]  # results of tests before, too
    assert after["computed_again"] == before["computed_again"]
    assert dask_marsched.status(client).exceptions == {}


@pytest.mark.extended
def test_the_restarted_process_of_the_only_worker_adopts():
    with (
        dask.config.set({"distributed.worker.profile.enabled": False}),
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(MarsSchedulerPlugin(settings=Settings(adopt="all")))
        sharing(client)
        (name,) = [w["name"] for w in client.scheduler_info()["workers"].values()]
        x = client.persist(da.random.default_rng(0).random((2048, 512), chunks=(256, 512)))
        objects = client.map(lambda i: mixed(np.full((256, 256), i), i), range(8), pure=False)
        outlive(client, [x, *objects])
        before = client.gather(objects), x.compute()
        (victim,) = client.has_what()
        kill(client, victim)
        total = client.compute(x.sum())  # it is not known yet that nobody is there
        np.testing.assert_equal(client.gather(objects), before[0])
        np.testing.assert_array_equal(x.compute(), before[1])
        np.testing.assert_allclose(total.result(timeout=60), before[1].sum())
        (worker,) = client.scheduler_info()["workers"].values()
        assert worker["name"] == name
        found = losses(client)
        assert found["results_adopted"] == 16
        assert (found["computed_again"], found["results_lost"]) == (0, 0)
        assert dask_marsched.status(client).exceptions == {}


@pytest.mark.slow
def test_waiting_for_a_restarted_process_ends_after_the_configured_time():
    settings = Settings(adopt="all", restart_patience=0.5)
    with (
        dask.config.set({"distributed.worker.profile.enabled": False}),
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(MarsSchedulerPlugin(settings=settings))
        sharing(client)
        futures = client.map(np.full, [(256, 256)] * 4, range(4), pure=False)
        outlive(client, futures)
        (victim,) = client.has_what()
        nanny = cluster.workers[0]
        nanny.instantiate = never  # as when the machine is too busy to start it
        kill(client, victim)
        poll_for(lambda: losses(client)["results_lost"] == 4, 20)
        assert not cluster.scheduler.workers
        cluster.sync(type(nanny).instantiate, nanny)
        assert [int(x[0, 0]) for x in client.gather(futures)] == list(range(4))


async def never():
    await asyncio.Event().wait()


def pids(client):
    return client.run(os.getpid, on_error="ignore").values()


@pytest.mark.extended
def test_a_task_that_kills_the_only_worker_fails_and_no_result_is_lost():
    config = {
        "distributed.worker.profile.enabled": False,
        "distributed.scheduler.allowed-failures": 1,
    }
    settings = Settings(adopt="all", restart_patience=30)
    with (
        dask.config.set(config),
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(MarsSchedulerPlugin(settings=settings))
        sharing(client)
        futures = client.map(np.full, [(256, 256)] * 4, range(4), pure=False)
        outlive(client, futures)
        with pytest.raises(KilledWorker, match=r"run task 'killer' on 2 different workers"):
            client.submit(kill_own, key="killer").result(timeout=60)
        assert [int(x[0, 0]) for x in client.gather(futures)] == list(range(4))
        assert losses(client)["computed_again"] == 0
        assert dask_marsched.status(client).exceptions == {}
