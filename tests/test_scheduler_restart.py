"""The scheduler's process is killed and started again: what runs on the cluster goes on."""

import json
import operator
import os
import signal
import urllib.request
from concurrent.futures import CancelledError, ThreadPoolExecutor

import dask.array as da
import distributed
import numpy as np
import pytest
from dask.delayed import delayed
from distributed import Event, Lock, Queue, Variable, as_completed, fire_and_forget, wait
from distributed.client import FutureCancelledError
from distributed.scheduler import Scheduler
from distributed.utils_test import async_poll_for, poll_for

import dask_marsched
from dask_marsched.host.client.reconnection import resumable
from tests.processes import local_cluster
from tests.restarts import RestartableCluster, free_port, kill_worker, restartable_cluster

PATIENCE = 60.0  # seconds until a test fails that hangs


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with restartable_cluster(tmp_path_factory.mktemp("restarts")) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared) -> RestartableCluster:
    (shared.directory / "ran").unlink(missing_ok=True)
    return shared


@pytest.fixture
def client(cluster):
    with dask_marsched.Client(cluster.address) as made:
        made.wait_for_workers(2)
        yield made
        assert dask_marsched.status(made).exceptions == {}


def restart(cluster: RestartableCluster) -> None:
    cluster.kill_scheduler()
    cluster.start_scheduler()


def test_results_are_kept_and_running_tasks_go_on(cluster, client):
    held = client.map(cluster.logged(), range(5), pure=False)
    wait(held)
    ends_in_the_outage = client.submit(cluster.gated(), 10, pure=False)
    cluster.wait_until_begun()
    later = client.submit(operator.add, ends_in_the_outage, 1)
    cluster.kill_scheduler()
    cluster.open_gate()
    of_the_outage = client.submit(cluster.logged(), 20, pure=False)
    cluster.start_scheduler()
    assert client.gather([*held, later, of_the_outage], asynchronous=False) == [
        0,
        2,
        4,
        6,
        8,
        21,
        40,
    ]
    ends_afterwards = client.submit(cluster.gated(), 30, pure=False)
    cluster.wait_until_begun()
    restart(cluster)
    client.submit(cluster.logged(), 40, pure=False).result(PATIENCE)
    cluster.open_gate()
    assert ends_afterwards.result(PATIENCE) == 60
    assert set(cluster.ran().values()) == {1}
    assert dask_marsched.status(client).details["journal"]["outages"]


@pytest.mark.extended
def test_an_array_with_fused_tasks_is_finished(cluster, client):
    log = cluster.logged()
    x = da.from_array(list(range(60)), chunks=2).map_blocks(lambda b: log(b), dtype=int)
    y = ((x - x.mean()) ** 2).sum()
    total = client.compute(y)
    first = client.submit(cluster.gated(), 0, pure=False)
    cluster.wait_until_begun()
    restart(cluster)
    cluster.open_gate()
    plain = 2.0 * da.arange(60, chunks=2)
    assert total.result(PATIENCE) == ((plain - plain.mean()) ** 2).sum().compute(scheduler="sync")
    assert first.result(PATIENCE) == 0
    assert set(cluster.ran().values()) == {1}


@pytest.mark.extended
def test_a_fused_task_that_is_sent_again_leaves_nothing(cluster, client):
    steps = [delayed(cluster.logged())(0, dask_key_name="step-0")]
    for i in range(1, 4):
        steps.append(delayed(operator.add)(steps[-1], i, dask_key_name=f"step-{i}"))
    last = client.compute(steps[-1])
    assert last.result(PATIENCE) == 6
    assert client.run_on_scheduler(_keys) == {"step-3"}
    restart(cluster)
    more = client.compute(delayed(operator.add)(steps[-1], 4, dask_key_name="more"))
    assert more.result(PATIENCE) == 10
    assert client.run_on_scheduler(_keys) == {"step-3", "more"}
    assert set(cluster.ran().values()) == {1}


def _keys(dask_scheduler):
    return set(dask_scheduler.tasks)


@pytest.mark.extended
def test_released_futures_are_released_and_errors_kept(cluster, client):
    futures = client.map(cluster.logged(), range(30), pure=False)
    fails = client.submit(operator.truediv, 1, 0)
    wait([*futures, fails])
    keys = [future.key for future in futures]
    del futures[::3]
    client.submit(operator.add, 1, 1).result(PATIENCE)
    client.run_on_scheduler(_wait_for_journal)
    cluster.kill_scheduler()
    del futures[::2]
    cluster.start_scheduler()
    assert client.gather(futures) == [2 * i for i in range(2, 30, 3)]
    with pytest.raises(ZeroDivisionError):
        fails.result(PATIENCE)
    # Sent after the releases.
    assert client.submit(operator.add, futures[0], 1).result(PATIENCE) == 5
    known = client.run_on_scheduler(lambda dask_scheduler: set(dask_scheduler.tasks))
    assert known & set(keys) == set(keys[2::3])
    assert set(cluster.ran().values()) == {1}


@pytest.mark.extended
def test_what_is_forgotten_and_ends_in_an_outage_is_released(cluster, client):
    task = client.submit(cluster.gated(), 10, pure=False)
    cluster.wait_until_begun()
    fire_and_forget(task)
    del task
    wait_until_written(client)
    cluster.kill_scheduler()
    cluster.open_gate()
    poll_for(lambda: cluster.ran()["10"] == 1, PATIENCE)
    cluster.start_scheduler()
    client.wait_for_workers(2, timeout=PATIENCE)
    poll_for(lambda: not client.run_on_scheduler(tasks_known), PATIENCE)
    assert cluster.ran() == {"10": 1}


@pytest.mark.extended
def test_a_key_that_is_used_again_stands_for_its_last_task(cluster, client):
    keeps, other = client.map(cluster.logged(), [1, 2], key=["keeps", "other"])
    wait([keeps, other])
    del other
    gated = client.submit(cluster.gated(), 10, pure=False)
    cluster.wait_until_begun()
    poll_for(lambda: client.run_on_scheduler(tasks_known) == 2, PATIENCE)  # without "other"
    other = client.submit(operator.sub, gated, 5, key="other")
    wait_until_written(client)
    restart(cluster)
    cluster.open_gate()
    assert other.result(PATIENCE) == 15
    assert keeps.result(PATIENCE) == 2


def wait_until_written(client):
    """Wait until the journal holds all that a client has sent."""
    kept = resumable(client, PATIENCE)
    client.sync(async_poll_for, lambda: not kept._unwritten, PATIENCE)


def tasks_known(dask_scheduler):
    return len(dask_scheduler.tasks)


@pytest.mark.extended
def test_a_key_may_be_used_again_in_an_outage(cluster, client):
    future = client.submit(operator.add, 1, 2, key="again")
    assert future.result(PATIENCE) == 3
    wait_until_written(client)
    cluster.kill_scheduler()
    client.sync(async_poll_for, lambda: client.status != "running", PATIENCE)
    del future
    client.sync(async_poll_for, lambda: "again" not in client.futures, PATIENCE)
    future = client.submit(operator.mul, 3, 4, key="again")
    cluster.start_scheduler()
    assert future.result(PATIENCE) == 12


@pytest.mark.extended
def test_what_is_cancelled_in_an_outage_is_cancelled_with_what_reads_it(cluster, client):
    kept, dropped = client.map(cluster.logged(), [1, 2], pure=False)
    wait([kept, dropped])
    gated = client.submit(cluster.gated(), 10, pure=False)
    cluster.wait_until_begun()
    reads = client.submit(operator.add, gated, 1)
    wait_until_written(client)
    cluster.kill_scheduler()
    client.sync(async_poll_for, lambda: client.status != "running", PATIENCE)
    client.cancel(gated)
    del dropped
    cluster.start_scheduler()
    poll_for(reads.cancelled, PATIENCE)
    assert gated.cancelled()
    assert kept.result(PATIENCE) == 2
    poll_for(lambda: client.run_on_scheduler(_keys) == {kept.key}, PATIENCE)
    cluster.open_gate()


@pytest.mark.extended
@pytest.mark.parametrize("ends_meanwhile", [False, True])
def test_fire_and_forget_in_an_outage(cluster, client, ends_meanwhile):
    gated = client.submit(cluster.gated(), 10, pure=False)
    cluster.wait_until_begun()
    forgotten = client.submit(cluster.logged(), gated, pure=False)
    wait_until_written(client)
    cluster.kill_scheduler()
    fire_and_forget(forgotten)
    del forgotten, gated
    if ends_meanwhile:
        cluster.open_gate()
        poll_for(lambda: cluster.ran()["10"] == 1, PATIENCE)
    cluster.start_scheduler()
    client.wait_for_workers(2, timeout=PATIENCE)
    if not ends_meanwhile:
        cluster.open_gate()
    poll_for(lambda: cluster.ran()["20"] == 1, PATIENCE)
    poll_for(lambda: not client.run_on_scheduler(tasks_known), PATIENCE)
    client.run_on_scheduler(_wait_for_journal)
    restart(cluster)  # it has run, and does not run again
    client.wait_for_workers(2, timeout=PATIENCE)
    assert client.gather(client.map(operator.neg, range(10))) == [-i for i in range(10)]
    assert cluster.ran() == {"10": 1, "20": 1}


@pytest.mark.extended
def test_several_clients_and_ways_to_wait(cluster, client):
    with dask_marsched.Client(cluster.address, set_as_default=False) as other:
        gate = client.submit(cluster.gated(), 1, pure=False)
        cluster.wait_until_begun()
        mine = client.map(operator.add, [gate] * 3, range(3))
        theirs = other.map(cluster.logged(), range(100, 200), pure=False)
        restart(cluster)
        cluster.open_gate()
        assert sorted(f.result() for f in as_completed(mine, timeout=PATIENCE)) == [2, 3, 4]
        assert wait(theirs, timeout=PATIENCE).not_done == set()
        assert other.gather(theirs) == [2 * i for i in range(100, 200)]
    assert set(cluster.ran().values()) == {1}


@pytest.mark.extended
def test_what_the_scheduler_holds_survives(cluster, client):
    future = client.submit(cluster.logged(), 3, pure=False)
    Variable("future").set(future)
    Variable("number").set(7)
    queue = Queue("queue")
    queue.put(future)
    queue.put(8)
    Event("event").set()
    lock = Lock("lock")
    assert lock.acquire()
    data = da.arange(8, chunks=4).persist()
    client.publish_dataset(data, name="data")
    client.set_metadata(["a", "b"], 9)
    scattered = client.scatter([10, 11])
    actor = client.submit(Count, actor=True)
    count = actor.result(PATIENCE)
    assert count.up().result(PATIENCE) == 1
    wait([future, data])
    client.run_on_scheduler(_wait_for_journal)
    restart(cluster)
    assert Variable("future").get(PATIENCE).result(PATIENCE) == 6
    assert Variable("number").get(PATIENCE) == 7
    assert [queue.get(PATIENCE).result(PATIENCE), queue.get(PATIENCE)] == [6, 8]
    assert Event("event").is_set()
    assert not Lock("lock").acquire(timeout=0.1)
    lock.release()
    assert Lock("lock").acquire(timeout=PATIENCE)
    assert client.get_dataset("data").sum().compute() == 28
    assert client.get_metadata(["a", "b"]) == 9
    assert client.gather(scattered) == [10, 11]
    assert count.up().result(PATIENCE) == 2
    client.unpublish_dataset("data")
    assert set(cluster.ran().values()) == {1}


def test_calls_that_wait_go_on_waiting(tmp_path):
    with (
        restartable_cluster(tmp_path, workers=3) as cluster,
        dask_marsched.Client(cluster.address) as client,
        ThreadPoolExecutor() as threads,
    ):
        client.wait_for_workers(3)
        holds = client.submit(locked, cluster.gated(), 1, pure=False)
        cluster.wait_until_begun()
        wants = client.submit(locked, cluster.logged(), 2, pure=False)
        reads = client.submit(value, "late", pure=False)
        event = threads.submit(Event("late", client).wait, PATIENCE)
        poll_for(lambda: client.run_on_scheduler(_waiting) == (1, 1, 1), PATIENCE)
        client.run_on_scheduler(_wait_for_journal)
        restart(cluster)
        poll_for(lambda: client.run_on_scheduler(_waiting) == (1, 1, 1), PATIENCE)
        cluster.open_gate()
        Variable("late", client).set(7)
        Event("late", client).set()
        assert event.result(PATIENCE) is True
        assert client.gather([holds, wants, reads], asynchronous=False) == [2, 4, 7]
        assert list(cluster.ran().items()) == [("1", 1), ("2", 1)]
        assert not client.sync(Lock("file", client.scheduler, client.loop)._locked)
        assert dask_marsched.status(client).exceptions == {}


def locked(function, x):
    with Lock("file"):
        return function(x)


def value(name):
    return Variable(name).get()


def _waiting(dask_scheduler):
    """How many calls wait for a lock, an event and a variable."""
    extensions = dask_scheduler.extensions
    return (
        extensions["semaphores"].metrics["pending"]["file"],
        extensions["events"]._waiter_count["late"],
        len(extensions["variables"].started._waiters),
    )


class Count:
    n = 0

    def up(self):
        self.n += 1
        return self.n


async def _wait_for_journal(dask_scheduler):
    import asyncio

    recorder = dask_scheduler.plugins["marsched"].restarts._parts.recorder
    assert await asyncio.wrap_future(recorder.pass_on())


class Refused:
    def __reduce__(self):
        return operator.truediv, (1, 0)


@pytest.mark.extended
def test_a_graph_that_cannot_be_unpickled_fails_as_without_a_restart(cluster, client):
    before = client.submit(operator.add, Refused(), 1, pure=False)
    with pytest.raises(RuntimeError, match="deserialization"):
        before.result(PATIENCE)
    cluster.kill_scheduler()
    in_the_outage = client.submit(operator.add, Refused(), 2, pure=False)
    cluster.start_scheduler()
    assert client.submit(operator.add, 1, 2, pure=False).result(PATIENCE) == 3
    for future in (in_the_outage, before):
        with pytest.raises(RuntimeError, match="deserialization"):
            future.result(PATIENCE)


def outages(client):
    return dask_marsched.status(client).details["journal"]["outages"]


class Deadly:
    def __reduce__(self):
        return end_scheduler, ()


def end_scheduler():
    for scheduler in Scheduler._instances:
        scheduler.plugins["marsched"].restarts._parts.recorder.pass_on().result()
    os._exit(7)


@pytest.mark.extended
def test_a_graph_that_ends_each_scheduler_is_given_up(cluster, client):
    held = client.submit(operator.add, 1, 2, pure=False)
    assert held.result(PATIENCE) == 3
    future = client.submit(operator.add, Deadly(), 1, pure=False)
    for _ in range(3):
        assert cluster.scheduler.wait() == 7
        cluster.start_scheduler()
    cluster.scheduler.wait_for("is given up: the scheduler ended 2 times")
    with pytest.raises(FutureCancelledError, match="did not survive"):
        future.result(PATIENCE)
    assert client.submit(operator.add, held, 1, pure=False).result(PATIENCE) == 4


@pytest.mark.extended
def test_it_may_die_again_while_others_come_back(cluster, client):
    earlier = len(outages(client))
    held = client.map(cluster.logged(), range(50), pure=False)
    wait(held)
    gate = client.submit(cluster.gated(), 100, pure=False)
    cluster.wait_until_begun()
    with dask_marsched.Client(cluster.address, set_as_default=False) as other:
        theirs = other.submit(cluster.logged(), 200, pure=False)
        assert theirs.result(PATIENCE) == 400
        cluster.kill_scheduler()
    for moment in ("Creating preload", "Scheduler at:", "Register worker"):
        cluster.start_scheduler()
        cluster.scheduler.wait_for(moment)
        cluster.kill_scheduler()
    cluster.start_scheduler()
    cluster.open_gate()
    assert gate.result(PATIENCE) == 200
    assert client.gather(held) == [2 * i for i in range(50)]
    # On a busy machine a worker may take longer to come back than it is waited for.
    missing = [outage["missing"] for outage in outages(client)[earlier:]]
    assert max(cluster.ran().values()) <= 1 + sum(missing)


@pytest.mark.extended
def test_a_shuffle_is_run_again(cluster, client):
    x = da.arange(400, chunks=20).reshape(20, 20)
    y = (x.rechunk((20, 1), method="p2p").rechunk((1, 20), method="p2p") + 1).sum(axis=0)
    gate = client.submit(cluster.gated(), 1, pure=False)
    cluster.wait_until_begun()
    total = client.compute(y)
    restart(cluster)
    cluster.open_gate()
    expected = (np.arange(400).reshape(20, 20) + 1).sum(axis=0)
    assert total.result(PATIENCE).tolist() == expected.tolist()
    assert gate.result(PATIENCE) == 2


@pytest.mark.extended
def test_a_service_manager_restarts_it(cluster, client):
    held = client.map(cluster.logged(), range(5), pure=False)
    wait(held)
    runs_on = client.submit(cluster.gated(), 10, pure=False)
    cluster.wait_until_begun()
    assert cluster.scheduler.send_signal(signal.SIGTERM) == -signal.SIGTERM
    cluster.start_scheduler()
    later = client.submit(operator.add, held[4], 1)
    assert later.result(PATIENCE) == 9
    cluster.open_gate()
    assert client.gather([*held, runs_on], asynchronous=False) == [0, 2, 4, 6, 8, 20]
    assert set(cluster.ran().values()) == {1}


@pytest.mark.extended
def test_ctrl_c_closes_the_cluster_though_there_is_a_journal(tmp_path):
    with (
        restartable_cluster(tmp_path, workers=1) as cluster,
        dask_marsched.Client(cluster.address) as client,
    ):
        future = client.submit(operator.add, 1, 2)
        assert future.result(PATIENCE) == 3
        assert cluster.scheduler.send_signal(signal.SIGINT) >= 0
        cluster.workers[0].wait()
        with pytest.raises(CancelledError):
            future.result(PATIENCE)


@pytest.mark.extended
def test_a_restart_on_purpose(cluster, client):
    held = client.submit(cluster.logged(), 5, pure=False)
    wait(held)
    pid = cluster.scheduler.pid
    done = cluster.run("marsched", "restart", cluster.address)
    assert done.wait_for(r"is back after \d+\.\d s")
    assert done.wait() == 0
    assert held.result(PATIENCE) == 10
    assert cluster.scheduler.pid == pid
    assert client.submit(operator.add, held, 1).result(PATIENCE) == 11
    assert cluster.ran() == {"5": 1}


@pytest.mark.extended
def test_a_restart_over_http(tmp_path):
    routes = {"DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES": "['distributed.http.scheduler.api']"}
    place = f"127.0.0.1:{free_port()}"
    with (
        restartable_cluster(tmp_path, 1, routes, ("--dashboard-address", place)) as cluster,
        dask_marsched.Client(cluster.address) as client,
    ):
        held = client.submit(cluster.logged(), 5, pure=False)
        wait(held)
        before = client.scheduler_info()["id"]
        request = urllib.request.Request(
            f"http://{place}/marsched/api/v1/restart",
            data=b"{}",
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            assert json.loads(answer.read()) == {"restarting": True}
        cluster.workers[0].wait_for("is back at its scheduler")
        assert client.submit(operator.add, held, 1).result(PATIENCE) == 11
        assert client.scheduler_info()["id"] != before
        (outage,) = client.run_on_scheduler(_faults)["outages"]
        told = {name: outage[name] for name in ("workers", "missing", "held", "running", "left")}
        assert told == {"workers": 1, "missing": 0, "held": 1, "running": 0, "left": 0}
        assert outage["seconds"] >= outage["read"]
        assert cluster.ran() == {"5": 1}


def _faults(dask_scheduler):
    return dask_scheduler.plugins["marsched"].observer.faults()


@pytest.mark.extended
def test_a_stock_client_can_resume(cluster, client):
    with distributed.Client(cluster.address, set_as_default=False) as stock:
        dask_marsched.resume(stock)
        gate = stock.submit(cluster.gated(), 1, pure=False)
        cluster.wait_until_begun()
        restart(cluster)
        cluster.open_gate()
        assert gate.result(PATIENCE) == 2


@pytest.mark.extended
def test_a_worker_that_died_meanwhile_is_not_waited_for(tmp_path):
    with (
        restartable_cluster(tmp_path) as cluster,
        dask_marsched.Client(cluster.address) as client,
    ):
        client.wait_for_workers(2)
        held = client.map(cluster.logged(), range(20), pure=False)
        wait(held)
        pids = client.run(lambda: (os.getppid(), os.getpid()))
        cluster.kill_scheduler()
        kill_worker(next(iter(pids.values())))
        cluster.start_scheduler()
        assert client.gather(held) == [2 * i for i in range(20)]
        ran = cluster.ran()
        assert set(ran.values()) <= {1, 2}
        assert 0 < sum(count == 2 for count in ran.values()) < 20


@pytest.mark.extended
def test_a_worker_joins_though_the_scheduler_dies_while_it_starts(tmp_path):
    with restartable_cluster(tmp_path, workers=0) as cluster:
        cluster.start_worker("worker-0")
        cluster.workers[0].wait_for("Start Nanny at:")  # it waits for its worker from here on
        restart(cluster)
        with dask_marsched.Client(cluster.address) as client:
            assert client.submit(cluster.logged(), 5, pure=False).result(PATIENCE) == 10
            pids = set(client.run(os.getppid).values())
            cluster.workers[0].wait_for("waits for another one")
            assert pids == set(client.run(os.getppid).values())
            assert client.submit(cluster.logged(), 6, pure=False).result(PATIENCE) == 12


@pytest.mark.extended
def test_a_supervised_scheduler_is_started_again(tmp_path):
    with restartable_cluster(tmp_path, workers=0) as cluster:
        cluster.kill_scheduler()
        supervisor = cluster.run("marsched", "supervise", *cluster.options())
        supervisor.wait_for("Scheduler at:")
        # A nanny whose scheduler dies while it registers gives up, in distributed itself.
        cluster.start_worker("worker-0", "--no-nanny")
        with dask_marsched.Client(cluster.address) as client:
            gate = client.submit(cluster.gated(), 1, pure=False)
            cluster.wait_until_begun()
            while dask_marsched.status(client).details["journal"]["seconds_behind"]:
                pass  # the worker is named in the journal, too
            os.kill(client.run_on_scheduler(os.getpid), signal.SIGKILL)
            supervisor.wait_for("it is started again")
            cluster.open_gate()
            assert gate.result(PATIENCE) == 2
        assert supervisor.send_signal(signal.SIGTERM) == 128 + signal.SIGTERM


def test_resume_says_when_there_is_no_journal():
    with local_cluster(n_workers=1, processes=False) as here, distributed.Client(here) as stock:
        with pytest.raises(RuntimeError, match="keeps no journal"):
            dask_marsched.resume(stock)
        assert stock.submit(operator.add, 1, 2).result(PATIENCE) == 3
    with pytest.raises(TypeError, match=r"takes a distributed\.Client"):
        dask_marsched.resume(None)
