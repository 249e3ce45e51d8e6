"""`record` on real clusters in this process."""

import asyncio
import operator
import sys
import threading
import time
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from dask import delayed
from distributed import Client, LocalCluster

import dask_marsched
from dask_marsched.monitoring.probes import load_probe
from dask_marsched.simulation import Costs, simulate
from tests.simulation.costs.test_cost_model import model_of


def recorders(client):
    return client.run_on_scheduler(
        lambda dask_scheduler: [name for name in dask_scheduler.plugins if "recorder" in name]
    )


def workers_of(client):
    return list(client.scheduler_info()["workers"])


def doubled():
    x = da.ones((400, 100), chunks=100).map_blocks(np.copy)
    return x + x


def test_every_task_is_recorded_with_its_size_and_duration(cluster, tmp_path):
    path = tmp_path / "costs.parquet"
    with Client(cluster, set_as_default=False) as client:
        with dask_marsched.record(client, path) as recording:
            assert len(recorders(client)) == 1
            future = client.compute(doubled())
            future.result()
            known = set(client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks)))
        assert recorders(client) == []
    assert known
    assert known <= set(recording.costs.nbytes)
    assert recording.costs.nbytes[future.key] == 400 * 100 * 8
    assert recording.costs.input_nbytes[future.key] == 400 * 100 * 8
    assert set(recording.costs.nbytes.values()) == {400 * 100 * 8, 100 * 100 * 8}
    assert all(seconds >= 0 for seconds in recording.costs.seconds.values())
    assert recording.cluster["workers"] == 2
    assert recording.cluster["threads"] == 1
    assert Costs.load(path) == recording.costs
    assert len(recording) == len(recording.costs.nbytes)
    assert set(recording.executions["worker"]) <= set(cluster.scheduler_info["workers"])


@pytest.mark.extended
def test_a_recording_serves_a_simulation_of_another_instance(cluster):
    def build():
        return (da.random.random(400, chunks=100) + 1).sum()

    with (
        Client(cluster, set_as_default=False) as client,
        dask_marsched.record(client) as recording,
    ):
        client.compute(build()).result()
    options = {"costs": recording, "isolated": True, **recording.cluster}
    # What was recorded was not joined.
    report = simulate(build(), policy="default+off", **options)
    assert report.tasks == len(recording)
    assert report.peak_memory <= 2 * sum(recording.costs.nbytes.values())


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not tell")
def test_workers_tell_how_long_their_threads_ran(cluster):
    def spin(seconds):
        began = time.thread_time()
        while time.thread_time() < began + seconds:
            pass
        return threading.get_ident()

    def ran():
        return load_probe()()["threads"][threading.get_ident()][0]

    before = ran()
    spin(0.02)
    assert ran() - before == pytest.approx(0.02, abs=0.01)
    with Client(cluster, set_as_default=False) as client:
        client.gather([client.submit(spin, 0.1, workers=[w]) for w in workers_of(client)])
        with dask_marsched.record(client) as recording:
            thread = client.submit(spin, 0.03, pure=False).result()
    (worker,) = recording.executions["worker"]
    ran, waited = recording._processor[worker][thread]
    assert ran == pytest.approx(0.04, abs=0.02)  # and not what it ran before
    assert waited >= 0


@pytest.mark.extended
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not tell")
def test_a_recording_tells_what_the_workers_needed_besides(tmp_path):
    path = tmp_path / "costs.parquet"
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit="2 GiB"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
        dask_marsched.record(client, path) as recording,
    ):
        client.gather(client.map(abs, range(300)))
    assert len(recording._loops) == 2
    assert all(seconds > 0 for seconds, _, _ in recording._loops)
    assert recording.overhead not in (0, 1)
    assert recording.makespan > 0
    assert Costs.load(path).overhead == recording.costs.overhead == recording.overhead
    x = da.ones(4, chunks=1).sum()
    assert simulate(x, costs=path, isolated=True).cluster["overhead"] == recording.overhead
    assert simulate(x, costs=path, isolated=True, overhead=2).cluster["overhead"] == 2


def test_an_event_loop_of_several_workers_tells_nothing(cluster):
    with (
        Client(cluster, set_as_default=False) as client,
        dask_marsched.record(client) as recording,
    ):
        client.gather(client.map(abs, range(300)))
    assert recording._loops == []
    assert recording.overhead == 1


def test_what_ran_before_and_after_is_not_recorded(cluster):
    with Client(cluster, set_as_default=False) as client:
        client.submit(abs, -1, key="before").result()
        with dask_marsched.record(client) as recording:
            client.submit(abs, -2, key=("during", 2, ("deep", 1.5))).result()
        client.submit(abs, -3, key="after").result()
    assert list(recording.costs.nbytes) == [("during", 2, ("deep", 1.5))]


def test_two_clients_record_at_once(cluster):
    with (
        Client(cluster, set_as_default=False) as one,
        Client(cluster, set_as_default=False) as two,
        dask_marsched.record(one) as outer,
    ):
        one.submit(abs, -1, key="first").result()
        with dask_marsched.record(two) as inner:
            two.submit(abs, -2, key="second").result()
        one.submit(abs, -3, key="third").result()
    assert list(outer.costs.nbytes) == ["first", "second", "third"]
    assert list(inner.costs.nbytes) == ["second"]


def test_a_recorder_leaves_with_its_client(cluster):
    with Client(cluster, set_as_default=False) as stays:
        with Client(cluster, set_as_default=False) as goes:
            recording = dask_marsched.record(goes)
            recording.__enter__()
            assert len(recorders(stays)) == 1
        stays.submit(abs, -1).result()
        assert recorders(stays) == []


def test_an_error_in_the_block_is_the_one_that_is_seen(cluster, tmp_path):
    path = tmp_path / "costs.parquet"
    with Client(cluster, set_as_default=False) as client:
        recording = dask_marsched.record(client, path)

        def run():
            with recording:
                client.submit(abs, -1, key="fine").result()
                delayed(operator.truediv)(1, 0).compute(scheduler=client)

        with pytest.raises(ZeroDivisionError):
            run()
        assert recorders(client) == []
    assert list(recording.costs.nbytes) == ["fine"]
    assert not path.exists()


def test_nothing_is_there_before_the_end(cluster):
    with Client(cluster, set_as_default=False) as client:
        recording = dask_marsched.record(client)
        with pytest.raises(RuntimeError, match="not ended"):
            _ = recording.costs
        assert "not ended" in repr(recording)
        with recording:
            pass
        assert len(recording) == 0


async def test_with_an_asynchronous_client():
    async with (
        LocalCluster(
            n_workers=1, processes=False, asynchronous=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster, asynchronous=True, set_as_default=False) as client,
    ):
        with pytest.raises(TypeError, match="async with"), dask_marsched.record(client):
            pass
        async with dask_marsched.record(client) as recording:
            await client.submit(abs, -1, key="one")
    assert recording.costs.nbytes == {"one": sys.getsizeof(1)}


def test_async_with_needs_an_asynchronous_client(cluster):
    async def use(client):
        async with dask_marsched.record(client):
            pass

    with (
        Client(cluster, set_as_default=False) as client,
        pytest.raises(TypeError, match="not asynchronous"),
    ):
        asyncio.run(use(client))


def test_bad_arguments_are_told_before_anything_runs(cluster, tmp_path):
    with pytest.raises(TypeError, match=r"distributed\.Client"):
        dask_marsched.record("tcp://127.0.0.1:8786")
    with (
        Client(cluster, set_as_default=False) as client,
        pytest.raises(FileNotFoundError, match="no directory"),
    ):
        dask_marsched.record(client, tmp_path / "nowhere" / "costs.parquet")


def test_a_scheduler_without_the_package_is_told(bare_scheduler):
    with (
        Client(bare_scheduler, set_as_default=False) as client,
        pytest.raises(RuntimeError, match=r"pip install .*scheduler's"),
        dask_marsched.record(client),
    ):
        pass


def test_durations_of_joined_tasks_are_those_of_their_members(cluster):
    def build():
        x = da.random.random((400, 400), chunks=100)
        y = x + x.T
        return (y - y.mean(axis=0)).std()

    with Client(cluster, set_as_default=False) as client:
        client.register_plugin(dask_marsched.MarsSchedulerPlugin())
        with dask_marsched.record(client) as recording:
            build().compute(scheduler=client)
    costs = recording.costs
    dsk, model = model_of(build(), costs)
    assert len(recording) < len(dsk)
    assert costs.joined
    assert model.durations == {"recorded": len(dsk)}
    seconds = [model(key)[0] for key in dsk]
    assert min(seconds) > 0
    assert sum(seconds) == pytest.approx(sum(costs.seconds.values()))
