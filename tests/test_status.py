"""`status` tells the truth about schedulers and workers with and without the package."""

import json
import os
import signal
import sys

import dask
import distributed
import pytest

import dask_marsched
from dask_marsched import Client, MarsSchedulerPlugin, status
from dask_marsched.config import Settings
from dask_marsched.monitoring.cluster_status import Status, _mismatches
from tests.processes import WITHOUT_PACKAGE, local_cluster

WORKER = "from distributed.cli.dask_worker import main; main()"


@pytest.fixture
def tcp_cluster():
    with local_cluster(n_workers=0, protocol="tcp", processes=False) as cluster:
        yield cluster


def start_worker(start, address, prefix=""):
    options = ("--no-nanny", "--no-dashboard", "--nthreads", "1")
    return start(sys.executable, "-c", prefix + WORKER, address, *options)


def test_active(cluster):
    with Client(cluster, scheduler_plugin="dfs") as client:
        found = status(client)
        assert isinstance(found, Status)
        assert found.active
        assert found.reason is None
        assert found.scheduler == cluster.scheduler_address
        assert found.policies == {
            "assignment": "dfs",
            "ordering": "dask",
            "placement": "most-bytes",
            "withholding": "units",
        }
        assert found.exceptions == {}
        assert found.last_exception is None
        assert found.workers_lacking == {}
        assert found.unreachable == {}
        assert found.mismatches == ()
        assert set(found.versions) == {"client", "scheduler", *cluster.scheduler.workers}
        for versions in found.versions.values():
            assert versions["dask_marsched"] == dask_marsched.__version__
            assert versions["distributed"] == distributed.__version__
            assert versions["python"] == sys.version.split()[0]
        assert ": active" in str(found)
        assert "assignment dfs" in str(found)


def test_everything_the_plugin_reports_is_there(cluster):
    with Client(cluster, scheduler_plugin=True) as client:
        report = cluster.scheduler.plugins["marsched"].report()
        found = status(client).to_dict()
    flat = {**found, **found["details"]}
    for key in report.keys() - {"versions"}:
        assert flat[key] == report[key]
    assert found["versions"]["scheduler"] == report["versions"]
    assert json.loads(json.dumps(found)) == json.loads(json.dumps(found))


def test_fused_tasks_are_counted(cluster):
    with Client(cluster, scheduler_plugin=MarsSchedulerPlugin(fusion="chains")) as client:
        x = dask.delayed(sum)([1, 2])
        assert dask.delayed(abs)(dask.delayed(abs)(x)).compute() == 3
        assert "  joined            3 operands into 1 (chains)" in str(status(client)).splitlines()
        client.unregister_scheduler_plugin("marsched")
        client.register_plugin(MarsSchedulerPlugin(fusion="off"))
        assert "joined" not in str(status(client))


def test_disabled_by_the_configuration(cluster):
    settings = dask_marsched.config.Settings(enabled=False)
    with Client(cluster, scheduler_plugin=MarsSchedulerPlugin(settings=settings)) as client:
        found = status(client)
        assert not found.active
        assert "marsched.enabled" in found.reason


def test_not_registered(cluster):
    with distributed.Client(cluster) as client:
        found = status(client)
    assert not found.active
    assert "not registered on this scheduler" in found.reason
    assert "client.register_plugin(dask_marsched.MarsSchedulerPlugin())" in found.reason
    assert "--preload dask_marsched" in found.reason
    assert "not active" in str(found)
    assert found.versions["scheduler"]["dask_marsched"] == dask_marsched.__version__


def test_registered_under_another_name(cluster):
    with distributed.Client(cluster) as client:
        client.register_plugin(MarsSchedulerPlugin(), name="mine")
        assert status(client).active


def test_scheduler_lacks_the_package(bare_scheduler):
    with distributed.Client(bare_scheduler) as client:
        found = status(client)
    assert not found.active
    assert "dask_marsched is not installed on the scheduler" in found.reason
    assert "pip install ." in found.reason
    assert found.versions["scheduler"]["dask_marsched"] is None
    assert found.versions["scheduler"]["distributed"] == distributed.__version__


@pytest.mark.extended
def test_some_workers_lack_the_package(tcp_cluster, start):
    start_worker(start, tcp_cluster.scheduler_address)
    start_worker(start, tcp_cluster.scheduler_address, WITHOUT_PACKAGE)
    plugin = MarsSchedulerPlugin(settings=Settings(store_shared=False, kernels_enabled=False))
    with Client(tcp_cluster, scheduler_plugin=plugin) as client:
        client.wait_for_workers(2, timeout=60)
        found = status(client)
        blocked = client.run(lambda: "Blocker" in repr(sys.meta_path))
    assert found.active
    expected = {worker for worker in blocked if blocked[worker]}
    assert len(expected) == 1
    assert found.workers_lacking == dict.fromkeys(expected, ("quota", "interrupts"))
    assert set(found.workers) == set(blocked) - expected
    assert all(f"not installed on  {worker}" in str(found) for worker in expected)


@pytest.mark.extended
def test_a_worker_that_hangs_is_named(tcp_cluster, start):
    start_worker(start, tcp_cluster.scheduler_address)
    start_worker(start, tcp_cluster.scheduler_address)
    with Client(tcp_cluster, scheduler_plugin=True) as client:
        client.wait_for_workers(2, timeout=60)
        pids = client.run(os.getpid)
        stopped, answering = sorted(pids)
        os.kill(pids[stopped], signal.SIGSTOP)
        try:
            found = status(client, timeout="1s")
        finally:
            os.kill(pids[stopped], signal.SIGCONT)
    assert found.active
    assert found.unreachable == {stopped: "did not answer within 1 s"}
    assert answering in found.versions
    assert f"not reached       {stopped}" in str(found)


def test_a_scheduler_that_hangs_is_reported(start_scheduler):
    address, _ = start_scheduler()
    with distributed.Client(address) as client:
        pid = client.run_on_scheduler(os.getpid)
        os.kill(pid, signal.SIGSTOP)
        try:
            found = status(client, timeout="200ms")
        finally:
            os.kill(pid, signal.SIGCONT)
    assert not found.active
    assert found.reason == "the scheduler did not answer within 0.2 s"


def test_a_scheduler_that_runs_no_functions(start_scheduler):
    env = {"DASK_DISTRIBUTED__SCHEDULER__BLOCKED_HANDLERS": '["run_function"]'}
    address, _ = start_scheduler(env=env)
    with distributed.Client(address) as client:
        found = status(client)
    assert not found.active
    assert "the scheduler cannot be asked" in found.reason
    assert "run_function" in found.reason


def test_closed_client(cluster):
    client = distributed.Client(cluster)
    client.close()
    found = status(client)
    assert not found.active
    assert found.reason == "the client is closed, not connected"


async def test_asynchronous_client():
    async with Client(
        asynchronous=True,
        n_workers=1,
        processes=False,
        dashboard_address=":0",
        worker_dashboard_address=None,
        scheduler_plugin=True,
    ) as client:
        found = await status(client)
        assert found.active
        assert len(found.versions) == 3


def test_not_a_client():
    with pytest.raises(TypeError, match=r"takes a distributed\.Client"):
        status("tcp://127.0.0.1:8786")


def test_mismatches():
    same = {"dask_marsched": "1", "distributed": "2", "dask": "3", "python": "4"}
    versions = {
        "scheduler": same,
        "client": {**same, "dask": "3.1"},
        "tcp://a": same,
        "tcp://b": {**same, "python": "5", "dask_marsched": None},
    }
    assert _mismatches(versions) == (
        "dask is 3.1 on client, 3 on the scheduler",
        "python is 5 on tcp://b, 4 on the scheduler",
    )


QUOTA = {
    "limit": 2048,
    "used": 1024,
    "promised": 0,
    "queued": 3,
    "evictions": 5,
    "deferrals": 6,
    "forced": 7,
    "exceptions": {"choose": 1},
}
STORE = {"memory": 1024, "spilled": 2048, "disk": 3, "written": 4}
SHARED = {
    "published": 1,
    "mapped": 2,
    "bytes_by_handle": 3,
    "bytes_by_comm": 4,
    "ahead": 5,
    "made_here": 6,
    "exceptions": {},
}


def test_text_is_readable():
    found = Status(
        scheduler="tcp://a:1",
        active=True,
        reason=None,
        policies={"assignment": "units"},
        operands_planned=10,
        exact_sizes=0.5,
        left_to_dask={"actor": 2},
        exceptions={"update_graph": 1},
        last_exception="ValueError: no",
        workers={
            "tcp://b:1": {
                "quota": QUOTA,
                "store": STORE,
                "shared": SHARED,
                "messages": {"answers": 8, "exceptions": {}},
                "runs": {"runs": 1, "tasks": 2, "exceptions": {"runs": 3}},
                "reasons": {},
            },
            "tcp://b:3": {
                "quota": None,
                "store": STORE,
                "shared": None,
                "reasons": {"quota": "no limit", "shared": "no nanny"},
            },
        },
        workers_lacking={"tcp://b:2": ("store",), "tcp://c:3": ()},
        mismatches=("dask is 1 on client, 2 on the scheduler",),
    )
    assert str(found).splitlines() == [
        "dask_marsched on the scheduler tcp://a:1: active",
        "  policies          assignment units",
        "  graphs planned    0",
        "  operands planned  10, the sizes of 50% known beforehand",
        "  operands placed   0",
        "  left to Dask      actor 2",
        "  exceptions        update_graph 1",
        "  last exception    ValueError: no",
        "  version mismatch  dask is 1 on client, 2 on the scheduler",
        "  worker tcp://b:1: quota limit 2.00 kiB, used 1.00 kiB, promised 0 B, queued 3 B, "
        "evictions 5, deferrals 6, forced 7, exceptions choose 1; "
        "store in memory 1.00 kiB, spilled 2.00 kiB, on disk 3 B; "
        "shared published 1 B, mapped 2 B, received by handle 3 B, by TCP 4 B, "
        "published unasked 5, published without a copy 6; runs exceptions runs 3",
        "  worker tcp://b:3: no quota: no limit; "
        "store in memory 1.00 kiB, spilled 2.00 kiB, on disk 3 B; no shared: no nanny",
        "  not installed on  tcp://b:2; off there: store",
        "  not installed on  tcp://c:3; off there: nothing (placement needs no code on workers)",
    ]
