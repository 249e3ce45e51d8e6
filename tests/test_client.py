"""``Client(scheduler_plugin=...)`` on real clusters, in each way of making a client."""

import importlib
import re
import sys
import threading

import dask.array as da
import distributed
import psutil
import pytest
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.security import Security

from dask_marsched import Client, MarsSchedulerPlugin, status
from dask_marsched.client import as_plugin
from dask_marsched.host.client.registering import check_start_hook
from dask_marsched.policies.assignment import BoundedUnits, DepthFirst
from tests.processes import WITHOUT_PACKAGE, local_cluster

LOCAL = {
    "n_workers": 1,
    "threads_per_worker": 1,
    "processes": False,
    "dashboard_address": ":0",
    "worker_dashboard_address": None,
}


class Counting(SchedulerPlugin):
    """Somebody else's plugin."""

    name = "counting"

    def __init__(self):
        self.started = 0

    async def start(self, scheduler):
        self.started += 1


class Failing(SchedulerPlugin):
    name = "failing"

    async def start(self, scheduler):
        raise ZeroDivisionError("this plugin cannot start")


def check_at_work(client, **policies):
    assert client.submit(sum, [1, 2, 3]).result(timeout=30) == 6
    found = status(client)
    assert found.active, found
    assert found.exceptions == {}
    assert {kind: found.policies[kind] for kind in policies} == policies


async def check_at_work_async(client):
    assert await client.submit(sum, [1, 2, 3]) == 6
    found = await status(client)
    assert found.active, found


# --- what the keyword accepts -------------------------------------------------------------


@pytest.mark.parametrize("given", [3, 1.5, b"dfs", ["dfs"], object(), MarsSchedulerPlugin, 1, 0])
def test_other_types_are_refused_before_anything_starts(given):
    children = psutil.Process().children()
    threads = threading.enumerate()
    with pytest.raises(TypeError, match="scheduler_plugin must be None or False") as caught:
        Client(scheduler_plugin=given, **LOCAL)
    for accepted in ("True", "assignment policy", "MarsSchedulerPlugin", "SchedulerPlugin"):
        assert accepted in str(caught.value)
    assert psutil.Process().children() == children
    assert set(threading.enumerate()) <= set(threads)


def test_a_class_instead_of_an_instance_gets_a_hint():
    with pytest.raises(TypeError, match=re.escape("write MarsSchedulerPlugin()")):
        Client(scheduler_plugin=MarsSchedulerPlugin)


def test_unknown_policy_is_refused_before_anything_starts():
    threads = set(threading.enumerate())
    with pytest.raises(ValueError, match="dfs") as caught:
        Client(scheduler_plugin="dsf", **LOCAL)
    assert "marsched.assignment.policy" in str(caught.value)
    assert set(threading.enumerate()) <= threads


def test_values_of_the_keyword():
    plugin, other = MarsSchedulerPlugin(), Counting()
    assert as_plugin(None) is None
    assert as_plugin(False) is None
    assert as_plugin(plugin) is plugin
    assert as_plugin(other) is other
    assert isinstance(as_plugin(True), MarsSchedulerPlugin)
    assert isinstance(as_plugin("bfs"), MarsSchedulerPlugin)


# --- ways of making a client --------------------------------------------------------------


def test_no_address_worker_processes():
    with Client(
        n_workers=2,
        threads_per_worker=1,
        dashboard_address=":0",
        worker_dashboard_address=None,
        scheduler_plugin=MarsSchedulerPlugin(),
    ) as client:
        assert type(client).__name__ == "Client"
        assert client.id.startswith("Client-")
        assert client.scheduler_comm.interval < 0.01  # stock Dask's
        check_at_work(client, assignment="units")


def test_cluster_object(cluster):
    with Client(cluster, scheduler_plugin=True) as client:
        check_at_work(client)


def test_policy_name_and_tcp_address():
    with (
        local_cluster(n_workers=1, protocol="tcp", processes=False, host="127.0.0.1") as cluster,
        Client(cluster.scheduler_address, scheduler_plugin="dfs") as client,
    ):
        assert cluster.scheduler_address.startswith("tcp://")
        check_at_work(client, assignment="dfs", ordering="dask")


def test_tls_address():
    security = Security.temporary()
    with (
        local_cluster(n_workers=1, protocol="tls", security=security, processes=False) as cluster,
        Client(cluster.scheduler_address, security=security, scheduler_plugin=True) as client,
    ):
        assert cluster.scheduler_address.startswith("tls://")
        check_at_work(client)


def test_a_client_of_another_cluster_stays_as_it_is(cluster):
    with Client(**LOCAL) as stock:
        before = stock.scheduler_comm.interval, dict(stock._stream_handlers)
        with Client(cluster, scheduler_plugin=True, set_as_default=False) as client:
            assert client.scheduler_comm.interval < before[0]
            assert (stock.scheduler_comm.interval, stock._stream_handlers) == before


@pytest.mark.parametrize("off", [None, False])
def test_stock_client(cluster, off):
    with Client(cluster, scheduler_plugin=off) as client:
        assert client.submit(sum, [1, 2]).result(timeout=30) == 3
        assert not status(client).active


async def test_asynchronous():
    client = await Client(asynchronous=True, scheduler_plugin=True, **LOCAL)
    try:
        await check_at_work_async(client)
    finally:
        await client.close()


async def test_async_with():
    async with Client(asynchronous=True, scheduler_plugin="bfs", **LOCAL) as client:
        await check_at_work_async(client)
        assert (await status(client)).policies["assignment"] == "bfs"


def test_any_other_scheduler_plugin(cluster):
    with Client(cluster, scheduler_plugin=Counting()):
        assert cluster.scheduler.plugins["counting"].started == 1
        assert "marsched" not in cluster.scheduler.plugins


# --- the stock client ---------------------------------------------------------------------


def test_stock_client_registers_and_unregisters(cluster):
    with distributed.Client(cluster) as client:
        client.register_plugin(MarsSchedulerPlugin(assignment="dfs"))
        check_at_work(client, assignment="dfs")
        client.unregister_scheduler_plugin("marsched")
        found = status(client)
        assert not found.active
        assert "not registered" in found.reason
        assert client.submit(sum, [1, 2]).result(timeout=30) == 3


def test_registering_again_replaces_the_plugin(cluster):
    with Client(cluster, scheduler_plugin="dfs") as client:
        with pytest.warns(UserWarning, match="already contains a plugin with name marsched"):
            client.register_plugin(MarsSchedulerPlugin(assignment="bfs"))
        check_at_work(client, assignment="bfs")


def test_registering_the_same_again_changes_nothing(cluster, recwarn):
    with Client(cluster, scheduler_plugin=True) as client:
        scheduler, (worker, _) = cluster.scheduler, cluster.workers.values()
        assert client.compute(da.ones(4, chunks=1).sum()).result(timeout=30) == 4
        plugin, part = scheduler.plugins["marsched"], worker.plugins["marsched"]
        planned = plugin.report()["graphs_planned"]
        assert planned
        with Client(cluster, scheduler_plugin=True) as other:
            assert scheduler.plugins["marsched"] is plugin
            assert worker.plugins["marsched"] is part
            check_at_work(other)
            found = plugin.report()
            assert found["graphs_planned"] == planned
            assert found["registered"]["time"] > found["registered"]["replaced"]["time"]
            assert found["registered"]["replaced"]["changed"] == {}
        assert not [w for w in recwarn if "already contains a plugin" in str(w.message)]
        # It can still be removed, and come again.
        client.unregister_scheduler_plugin("marsched")
        assert not status(client).active
        client.register_plugin(MarsSchedulerPlugin())
        assert scheduler.plugins["marsched"] is not plugin
        check_at_work(client)


def test_a_policy_of_ones_own_replaces_that_of_the_same_name(cluster):
    class Mine(DepthFirst):
        name = "mine"

    with Client(cluster, scheduler_plugin=MarsSchedulerPlugin(assignment=Mine())) as client:
        plugin = cluster.scheduler.plugins["marsched"]
        with pytest.warns(UserWarning, match="already contains a plugin"):
            client.register_plugin(MarsSchedulerPlugin(assignment=Mine()))
        assert cluster.scheduler.plugins["marsched"] is not plugin
        check_at_work(client, assignment="mine")


def test_another_parameter_of_a_policy_replaces_it(cluster):
    plugin = MarsSchedulerPlugin(assignment=BoundedUnits(kappa=8))
    with Client(cluster, scheduler_plugin=plugin) as client:
        with pytest.warns(UserWarning, match="already contains a plugin"):
            client.register_plugin(MarsSchedulerPlugin(assignment=BoundedUnits(kappa=4)))
        assert cluster.scheduler.plugins["marsched"].policies.assignment.kappa == 4


# --- what goes wrong ----------------------------------------------------------------------


def test_failing_plugin_closes_client_and_its_cluster():
    threads = set(threading.enumerate())
    options = {**LOCAL, "processes": True}
    with pytest.raises(ZeroDivisionError, match="cannot start"):
        Client(scheduler_plugin=Failing(), **options)
    # the worker was a child of this process, and the event loop a thread of it
    commands = [" ".join(child.cmdline()) for child in psutil.Process().children()]
    assert not [command for command in commands if "spawn_main" in command]
    left = [thread.name for thread in set(threading.enumerate()) - threads]
    assert not [name for name in left if "IO loop" in name]
    with pytest.raises(ValueError, match="No clients found"):
        distributed.default_client()


async def test_failing_plugin_asynchronous():
    client = Client(asynchronous=True, scheduler_plugin=Failing(), **LOCAL)
    with pytest.raises(ZeroDivisionError, match="cannot start"):
        await client
    assert client.status == "closed"
    assert client.cluster.status is distributed.Status.closed


def test_failing_plugin_leaves_a_cluster_of_the_users_alone(cluster):
    with pytest.raises(ZeroDivisionError, match="cannot start"):
        Client(cluster, scheduler_plugin=Failing())
    with distributed.Client(cluster) as client:
        assert client.submit(sum, [1, 2]).result(timeout=30) == 3


def test_scheduler_without_the_package(bare_scheduler):
    expected = "dask_marsched is not installed on the scheduler: run `pip install .`"
    with pytest.raises(RuntimeError, match=expected):
        Client(bare_scheduler, scheduler_plugin=True)
    with distributed.Client(bare_scheduler) as client:  # it is none the worse for that
        assert client.scheduler_info()["workers"] == {}


async def test_scheduler_without_the_package_asynchronous(bare_scheduler):
    with pytest.raises(RuntimeError, match="is not installed on the scheduler"):
        async with Client(bare_scheduler, asynchronous=True, scheduler_plugin=True):
            pass


def test_no_scheduler_there():
    with pytest.raises(OSError, match=r"Timed out|connect"):
        Client("tcp://127.0.0.1:9", timeout="1s", scheduler_plugin=True)


@pytest.mark.extended
def test_workers_without_the_package_compute(start):
    code = WITHOUT_PACKAGE + "from distributed.cli.dask_worker import main; main()"
    with (
        local_cluster(n_workers=0, protocol="tcp", processes=False) as cluster,
        Client(cluster, scheduler_plugin=True) as client,
    ):
        start(sys.executable, "-c", code, cluster.scheduler_address, "--no-nanny", "--no-dashboard")
        client.wait_for_workers(1, timeout=60)
        check_at_work(client)


def test_other_version_of_distributed(monkeypatch):
    check_start_hook()
    monkeypatch.delattr(distributed.Client, "_start")
    with pytest.raises(RuntimeError, match=r"no coroutine Client\._start") as caught:
        Client("tcp://127.0.0.1:9", scheduler_plugin=True)
    assert "client.register_plugin" in str(caught.value)


@pytest.mark.extended
def test_policy_in_a_module_that_the_scheduler_lacks(start_scheduler, tmp_path, monkeypatch):
    address, _ = start_scheduler()
    source = "class Mine:\n    name = 'mine'\n    def assign(self, graph, workers, pending=None):\n"
    (tmp_path / "my_policies.py").write_text(source + "        return []\n")
    monkeypatch.syspath_prepend(tmp_path)
    policy = importlib.import_module("my_policies").Mine()
    with pytest.raises(RuntimeError, match="install the module my_policies in the scheduler's"):
        Client(address, scheduler_plugin=MarsSchedulerPlugin(assignment=policy))
