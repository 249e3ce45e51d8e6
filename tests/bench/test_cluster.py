"""Real clusters: what the probes count is what is known to move, and failures are told."""

import asyncio
import json
import os
import signal

import dask.array as da
import numpy as np
import pytest
from click.testing import CliRunner
from distributed import wait

from benchmarks import workloads
from benchmarks.command import Options, bench
from dask_marsched.bench import command as installed
from dask_marsched.bench import probes
from dask_marsched.bench.cluster import BenchCluster, Setting, policy_plugin
from dask_marsched.bench.workloads import Parameters, Workload

pytestmark = pytest.mark.timeout(180)
CHUNK = 2**20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    parameters = Parameters(0.05, 65536, tmp_path_factory.mktemp("scratch"))
    with BenchCluster("stock", Setting(2, 1, parameters, timeout=60), ()) as opened:
        yield opened


@pytest.fixture
def client(cluster):
    with cluster.client.as_current():
        cluster.settle(cluster.client)  # what the test before left must not count
        cluster.client.run(probes.reset_traffic)
        cluster.client.run_on_scheduler(probes.reset_probe)
        yield cluster.client


def moved(client):
    return probes.bytes_between_workers(client.run(probes.read_traffic))


def fetched(client):
    """Bytes of results that workers gave away, by distributed's own account."""
    return sum(client.run(lambda dask_worker: dask_worker.transfer_outgoing_bytes_total).values())


@pytest.mark.extended
def test_bytes_of_a_fetched_result_are_counted(client):
    here, there = client.scheduler_info()["workers"]
    data = client.submit(np.ones, CHUNK // 8, workers=[here], pure=False)
    wait(client.submit(np.sum, data, workers=[there]))
    assert CHUNK <= moved(client) < 1.02 * CHUNK


def test_bytes_to_and_from_the_client_are_not_counted(client):
    here, _ = client.scheduler_info()["workers"]
    data = client.submit(np.ones, CHUNK // 8, workers=[here], pure=False)
    data.result()
    client.gather(client.scatter([np.ones(CHUNK // 8)], workers=[here], hash=False))
    assert moved(client) < 0.02 * CHUNK


@pytest.mark.extended
def test_bytes_of_the_peer_to_peer_shuffle_are_counted(client):
    """Every row of chunks is cut into as many parts for one worker as for the other."""
    addresses = list(client.scheduler_info()["workers"])
    rows = [
        client.submit(np.ones, (16, CHUNK // 128), workers=[addresses[i % 2]], pure=False)
        for i in range(8)
    ]
    wait(rows)
    parts = [da.from_delayed(row, (16, CHUNK // 128), "f8") for row in rows]
    array = da.concatenate(parts).rechunk((128, CHUNK // 1024), method="p2p")
    before, fetched_before = moved(client), fetched(client)
    wait(array.persist())
    shuffled = moved(client) - before - (fetched(client) - fetched_before)
    # Half of every row goes to the other worker, wherever it is cut.
    assert 4 * CHUNK <= shuffled < 1.02 * 4 * CHUNK


def test_managed_memory_counts_replicas_and_tasks_sent(client):
    here, there = client.scheduler_info()["workers"]
    data = client.submit(np.ones, CHUNK // 8, workers=[here], pure=False)
    wait(client.submit(np.sum, data, workers=[there]))
    peak, sent = client.run_on_scheduler(probes.read_probe)
    assert 2 * CHUNK <= peak < 2.02 * CHUNK
    assert sent == 2


def test_connections_to_oneself_and_to_strangers_do_not_count():
    written = {
        "a": {("a:1", "b:9"): 100, ("a:7", "a:1"): 5, ("a:8", "scheduler"): 1000},
        "b": {("b:9", "a:1"): 20, ("b:1", "client"): 3000},
    }
    written["a"]["a:1", "a:7"] = 6
    assert probes.bytes_between_workers(written) == 120


def test_pss_is_that_of_the_processes():
    with probes.PssSampler([os.getpid()]) as sampler:
        data = np.ones(32 * 2**20 // 8)
    assert sampler.samples >= 2
    assert sampler.peak > data.nbytes
    assert probes.proportional_set_size(2**22 + 1) == 0  # above the largest possible pid


@pytest.mark.extended
def test_workload_is_measured_and_leaves_nothing_behind(cluster):
    first, second = (
        cluster.measure(workloads.get(name), 0) for name in ("rechunk-p2p", "persisted-arithmetic")
    )
    for m in (first, second):
        assert m.error is None
        assert m.moved > 0
        assert m.managed > 0
        assert m.sent > 0
        assert m.pss > 0
        assert m.seconds > 0
        assert m.cpu > m.scheduler_cpu > 0
    assert cluster.client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)) == 0
    assert cluster.measure(workloads.get("rechunk-p2p"), 1).digest == first.digest


def failing(expression):
    return Workload("failing", "", lambda _: (), lambda _: (expression,))


@pytest.mark.extended
def test_failing_run_is_a_measurement_and_the_next_one_works(cluster):
    broken = failing(da.ones(4, chunks=2).map_blocks(lambda _: 1 // 0, dtype="f8", meta=np.ones(0)))
    measurement = cluster.measure(broken, 0)
    assert "ZeroDivisionError" in measurement.error
    assert cluster.measure(workloads.get("cumsum"), 0).error is None


@pytest.mark.slow
def test_run_without_end_and_dead_worker_are_measurements(tmp_path):
    setting = Setting(1, 1, Parameters(0.05, 65536, tmp_path), timeout=2)

    def endless(_):
        asyncio.run(asyncio.sleep(3600))  # workload

    forever = da.ones(2).map_blocks(endless, dtype="f8", meta=np.ones(0))
    with BenchCluster("stock", setting, ()) as opened:
        assert "Timeout" in opened.measure(failing(forever), 0).error
        (pid,) = opened.pids.values()
        os.kill(pid, signal.SIGKILL)
        assert opened.measure(workloads.get("cumsum"), 0).error is not None
        assert opened.measure(workloads.get("cumsum"), 0).error is None


def test_workload_that_needs_what_is_not_there_says_so(cluster):
    absent = Workload("x", "", lambda _: (), lambda _: (), requires=("no_such_module",))
    assert cluster.measure(absent, 0).error == "not run: needs no_such_module"


@pytest.mark.slow
def test_command_prints_and_saves(tmp_path):
    saved, page = tmp_path / "bench.json", tmp_path / "bench.md"
    arguments = "--select thin-column-sum,binary-mean --repeat 1 --workers 2 --size 0.02"
    files = ["--chunk", "64 kiB", "--json", str(saved), "--markdown", str(page)]
    done = CliRunner().invoke(bench, [*arguments.split(), *files])
    assert done.exit_code == 0, done.output
    assert "thin-column-sum" in done.output
    found = json.loads(saved.read_text())
    assert [(m["workload"], m["policy"]) for m in found["measurements"]] == [
        ("thin-column-sum", "stock"),
        ("thin-column-sum", "default"),
        ("binary-mean", "default"),
        ("binary-mean", "stock"),
    ]
    assert all(m["error"] is None for m in found["measurements"])
    assert all(row["identical"] for row in found["rows"])
    assert [r["active"] for r in found["plugin_reports"]] == [True]
    assert found["plugin_reports"][0]["exceptions"] == {}
    assert "binary-mean" in page.read_text()


@pytest.mark.extended
def test_the_installed_command_prints_and_saves(tmp_path):
    saved = tmp_path / "bench.json"
    arguments = "--select binary-mean --repeat 1 --workers 2 --size 0.02 --chunk 64kiB --json"
    done = CliRunner().invoke(installed.bench, [*arguments.split(), str(saved)])
    assert done.exit_code == 0, done.output
    assert "binary-mean" in done.output
    found = json.loads(saved.read_text())
    assert found["command"].startswith("dask marsched bench")
    assert [row["identical"] for row in found["rows"]] == [True, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--select", "nope"], "no workload named 'nope'; accepted: thin-column-sum"),
        (["--policy", "nope"], "nope"),
        (["--size", "0"], "size must be a number above 0"),
        (["--workers", "0"], "--workers"),
    ],
)
@pytest.mark.parametrize("command", [bench, installed.bench])
def test_bad_input_is_one_clear_error(command, arguments, message):
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 2
    assert message in done.output
    assert "Traceback" not in done.output


def test_another_scheduler_that_is_not_known_is_an_error():
    done = CliRunner().invoke(bench, ["--against", "mars"])
    assert done.exit_code == 2
    assert "frisky" in done.output


def test_list_names_every_workload_and_marks_the_held_out():
    done = CliRunner().invoke(bench, ["--list"])
    for name in workloads.names(workloads.Kind):
        (line,) = [line for line in done.output.splitlines() if line.split()[0] == name]
        held_out = workloads.get(name).kind is workloads.Kind.HELD_OUT
        assert ("[held out]" in line) is held_out


def test_held_out_workloads_are_selected_by_an_option():
    context = bench.make_context("bench", ["--held-out"])
    assert Options(**context.params).kinds == (workloads.Kind.HELD_OUT,)
    context = bench.make_context("bench", [])
    assert workloads.Kind.HELD_OUT not in Options(**context.params).kinds


@pytest.mark.parametrize(
    ("policy", "fusion", "kernels"),
    [("default", "subgraphs", True), ("dfs+chains+nokernels#2", "chains", False),
     ("default+off", "off", True), ("default+off+nokernels", "off", False)],
)  # fmt: skip
def test_what_stands_behind_the_name_of_a_policy(policy, fusion, kernels):
    settings = policy_plugin(policy).settings
    assert (settings.fusion, settings.kernels_enabled) == (fusion, kernels)


def test_parts_of_the_workers_stand_behind_it_too():
    settings = policy_plugin("default+noquota+unshared+uninterrupted").settings
    assert not settings.quota_enabled
    assert not settings.store_shared
    assert not settings.interrupt


@pytest.mark.parametrize("policy", ["default+nonsense", "default+chains+subgraphs", "nonsense"])
def test_what_is_no_policy_is_an_error(policy):
    with pytest.raises(ValueError, match=r"nonsense|chains\+subgraphs"):
        policy_plugin(policy)
