"""Workers that come back to a scheduler that was restarted are what they were before."""

import asyncio
import functools
import operator
import os
import signal

import numpy as np
import pytest
from distributed import SchedulerPlugin, wait
from distributed.active_memory_manager import RetireWorker
from distributed.utils_test import async_poll_for

import dask_marsched
from tests.restarts import free_port, restartable_cluster
from tests.test_scheduler_restart import PATIENCE, _wait_for_journal, restart, wait_until_written

pytestmark = pytest.mark.extended


@pytest.fixture
def cluster(tmp_path):
    with restartable_cluster(tmp_path, workers=0) as made:
        yield made


@pytest.fixture
def client(cluster):
    with dask_marsched.Client(cluster.address) as made:
        yield made
        status = dask_marsched.status(made)
        assert status.exceptions == {}, cluster.scheduler.output[-6000:]


def poll(client, function, expected):
    """Wait until a function that is run on the scheduler returns a value."""
    client.run_on_scheduler(until, function, expected)


async def until(function, expected, dask_scheduler):
    await async_poll_for(lambda: function(dask_scheduler) == expected, PATIENCE)


def start_workers(cluster, client, number):
    for i in range(number):
        cluster.start_worker(f"w{i}")
    client.wait_for_workers(number)


def adopters(dask_scheduler):
    return len(dask_scheduler.plugins["marsched"]._failover._adoption.adopters._ready)


def kept(dask_scheduler):
    return len(dask_scheduler.plugins["marsched"]._failover._adoption._kept)


def test_results_of_a_worker_that_dies_later_are_adopted(cluster, client):
    start_workers(cluster, client, 2)
    poll(client, adopters, 2)
    arrays = client.map(np.full, [2_000_000] * 6, range(6), pure=False)
    wait(arrays)
    poll(client, kept, 6)
    restart(cluster)
    poll(client, kept, 6)
    holds = client.has_what()
    address = max(holds, key=lambda worker: len(holds[worker]))
    os.kill(client.run(os.getpid, workers=[address])[address], signal.SIGKILL)
    assert [array[0] for array in client.gather(arrays)] == list(range(6))
    recoveries = dask_marsched.status(client).details["recoveries"]
    assert recoveries["results_adopted"] == len(holds[address])
    assert recoveries["computed_again"] == 0


class Count:
    n = 0

    def up(self):
        self.n += 1
        return self.n


def test_an_actor_that_died_with_the_scheduler_does_not_begin_anew(cluster, client):
    start_workers(cluster, client, 2)
    where = client.submit(Count, actor=True, pure=False)
    count = where.result(PATIENCE)
    assert count.up().result(PATIENCE) == 1
    pid = client.run(os.getpid, workers=[count._address])[count._address]
    wait_until_written(client)
    client.run_on_scheduler(_wait_for_journal)
    cluster.kill_scheduler()
    os.kill(pid, signal.SIGKILL)
    cluster.start_scheduler()
    client.sync(async_poll_for, lambda: where.status == "error", PATIENCE)
    with pytest.raises(RuntimeError, match="Worker holding Actor was lost"):
        where.result(PATIENCE)


def test_a_worker_that_retires_goes_on(cluster, client):
    start_workers(cluster, client, 2)
    held = client.map(cluster.logged(), range(8), pure=False)
    wait(held)
    scattered = client.scatter(list(range(20)))
    client.run_on_scheduler(_wait_for_journal)
    (address, *_) = client.scheduler_info()["workers"]
    client.run_on_scheduler(retire_without_end, worker=address)

    def status(dask_scheduler):
        return dask_scheduler.workers[address].status.name

    poll(client, status, "closing_gracefully")
    restart(cluster)
    assert client.gather([*held, *scattered]) == [*range(0, 16, 2), *range(20)]
    assert set(cluster.ran().values()) == {1}
    poll(client, status, "running")


async def retire_without_end(dask_scheduler, worker):
    RetireWorker.run = lambda self: iter(())  # as if copies took long
    retirement = dask_scheduler.retire_workers(workers=[worker], stimulus_id="test")
    dask_scheduler._retirement = asyncio.create_task(retirement)


def test_a_worker_gets_the_options_of_the_next_scheduler(cluster, client):
    start_workers(cluster, client, 1)
    held = client.submit(operator.add, 1, 2)
    wait(held)
    wait_until_written(client)
    cluster.kill_scheduler()
    cluster.start_scheduler("--marsched-config", "quota.fraction=0.33")
    assert client.submit(operator.add, held, 2).result(PATIENCE) == 5
    client.run(until_options_have_come)


async def until_options_have_come(dask_worker):
    def has_them():
        plugin = dask_worker.plugins.get("marsched")  # it is replaced by one with the options
        return plugin is not None and plugin.settings.quota_fraction == 0.33

    await async_poll_for(has_them, PATIENCE)


def test_a_worker_may_have_a_name_for_an_address(cluster, client):
    port = free_port()
    listens = ("--listen-address", f"tcp://0.0.0.0:{port}")
    cluster.start_worker("w0", *listens, "--contact-address", f"tcp://localhost:{port}")
    client.wait_for_workers(1)
    scattered = client.scatter(7)
    client.submit(operator.add, 1, 1).result(PATIENCE)
    wait_until_written(client)  # so is what came before
    restart(cluster)
    assert scattered.result(PATIENCE) == 7


def test_a_held_result_outlives_that_its_input_fails(cluster, client):
    start_workers(cluster, client, 1)
    flag = cluster.directory / "gone"
    first = client.submit(read, str(flag), key="first")
    second = client.submit(operator.add, first, 1, key="second")
    assert second.result(PATIENCE) == 6
    del first
    poll(client, state_of_first, "released")
    flag.touch()
    first = client.submit(read, str(flag), key="first")
    wait(first)
    wait_until_written(client)
    restart(cluster)
    with pytest.raises(FileNotFoundError):
        first.result(PATIENCE)
    assert second.result(PATIENCE) == 6


def state_of_first(dask_scheduler):
    return dask_scheduler.tasks["first"].state


def read(flag):
    if os.path.exists(flag):
        raise FileNotFoundError(flag)
    return 5


def lose_next_release(dask_worker):
    """Lose the next message that results are to be freed, as with a connection that breaks."""
    handlers = dask_worker.stream_handlers
    stock = handlers["free-keys"]

    def lose(**message):
        handlers["free-keys"] = stock

    handlers["free-keys"] = lose


def knows(key, dask_scheduler):
    return key in dask_scheduler.tasks


def hold_and_forget(client, key):
    """Leave a result on a worker of a task that the scheduler has forgotten."""
    held = client.submit(operator.add, 1, 1, key=key)
    wait(held)
    client.run(lose_next_release)
    del held
    poll(client, functools.partial(knows, key), False)


def test_a_key_that_was_used_again_does_not_get_the_result_before(cluster, client):
    start_workers(cluster, client, 1)
    hold_and_forget(client, "again")
    first = client.submit(cluster.gated(), 10, pure=False)
    second = client.submit(operator.add, first, 10, key="again")
    cluster.wait_until_begun()
    wait_until_written(client)
    restart(cluster)
    cluster.open_gate()
    assert second.result(PATIENCE) == 30


class KillOnArrival(SchedulerPlugin):
    """Kills the scheduler when the graph of a key arrives, before it is in the journal."""

    name = "kill-on-arrival"

    def __init__(self, key):
        self.key = key

    def update_graph(self, scheduler, *, keys, **kwargs):
        if self.key in keys:
            os.kill(os.getpid(), signal.SIGKILL)


def test_nor_if_the_scheduler_dies_as_the_key_arrives_again(cluster, client):
    start_workers(cluster, client, 1)
    hold_and_forget(client, "again")
    wait_until_written(client)
    client.register_plugin(KillOnArrival("again"))
    second = client.submit(operator.add, 10, 10, key="again")
    cluster.scheduler.wait(PATIENCE)
    cluster.start_scheduler()
    assert second.result(PATIENCE) == 20
