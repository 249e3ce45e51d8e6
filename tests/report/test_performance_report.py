"""`performance_report` writes what happened within its block, whatever happened."""

import json
import operator
import re

import dask
import dask.array as da
import distributed
import fsspec
import pytest
from distributed import Client as StockClient
from distributed.utils_test import gen_cluster

import dask_marsched
from dask_marsched import Client, MarsSchedulerPlugin, performance_report
from tests.monitoring.test_html import Reader


def data_of(page: str) -> dict:
    return json.loads(re.search(r'id="marsched-report">(.*?)</script>', page, re.DOTALL)[1])


def test_what_ran_within_is_told(cluster, tmp_path):
    path = tmp_path / "report.html"
    with Client(cluster, scheduler_plugin="dfs") as client:
        client.compute(da.ones((30, 30), chunks=10).sum()).result()
        plugins = set(cluster.scheduler.plugins)
        with performance_report(path, title="Of <this>"):
            x = da.random.random((60, 60), chunks=10)
            client.compute((x + x.T).sum()).result()
        assert set(cluster.scheduler.plugins) == plugins
        page = path.read_text()
        found = data_of(page)
        (graph,) = found["observed"]["graphs"]
        assert graph["done"]
        assert sum(graph["over_time"]["counts"].values()) == graph["operands"]
        assert found["error"] is None
        assert set(found["followed"]) == set(cluster.scheduler.workers)
        assert found["observed"]["from_start"]
        # The heading, the code of the block and what was set are on the page, as text.
        text = " ".join(Reader(re.sub(r"<(meta|link)[^>]*>", "", page)).text)
        for part in (
            "Of <this>",
            f"Graph {graph['number']}: {graph['operands']} operands",
            "client.compute((x + x.T).sum()).result()",
            "marsched.assignment.policy dfs units",
            f"client, scheduler, 2 workers {dask_marsched.__version__} {distributed.__version__}",
            "Transfers",
            "They were off on all workers",
        ):
            assert part in text, part


def test_a_computation_that_fails_is_reported(cluster, tmp_path):
    path = tmp_path / "report.html"
    with Client(cluster, scheduler_plugin=True) as client:
        with (
            pytest.raises(ZeroDivisionError),
            performance_report(path, client),
            dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        ):
            client.submit(operator.truediv, 1, 0, key="failing-1").result()
        page = path.read_text()
    assert data_of(page)["error"] == "ZeroDivisionError: division by zero"
    assert "It failed: ZeroDivisionError: division by zero" in page


def test_without_the_plugin_it_says_so(cluster, tmp_path):
    path = tmp_path / "report.html"
    with StockClient(cluster) as client, performance_report(path, client):
        assert client.submit(operator.add, 1, 2).result() == 3
    page = path.read_text()
    assert "dask_marsched was not registered on this scheduler" in page
    assert data_of(page)["plugin"] is None


def test_with_the_observer_off_it_says_so(cluster, tmp_path):
    path = tmp_path / "report.html"
    with dask.config.set({"marsched.observer.enabled": False}):
        plugin = MarsSchedulerPlugin()
    with Client(cluster, scheduler_plugin=plugin) as client, performance_report(path, client):
        assert client.submit(operator.add, 1, 2).result() == 3
    assert "The observer was off (marsched.observer.enabled)" in path.read_text()


def test_a_plugin_that_comes_meanwhile(cluster, tmp_path):
    path = tmp_path / "report.html"
    with StockClient(cluster) as client, performance_report(path, client):
        client.register_plugin(MarsSchedulerPlugin())
        client.compute(da.ones((40, 40), chunks=10).sum()).result()
    page = path.read_text()
    assert "The plugin was registered anew meanwhile" in page
    assert len(data_of(page)["observed"]["graphs"]) == 1


def test_beside_dasks_own(cluster, tmp_path):
    ours, theirs = tmp_path / "ours.html", tmp_path / "theirs.html"
    with (
        Client(cluster, scheduler_plugin=True) as client,
        distributed.performance_report(filename=str(theirs)),
        performance_report(filename=ours),
    ):
        client.compute(da.ones((40, 40), chunks=10).sum()).result()
    assert "Dask Performance Report" in theirs.read_text()
    assert len(data_of(ours.read_text())["observed"]["graphs"]) == 1


def test_addresses_that_fsspec_opens(cluster, tmp_path):
    with Client(cluster, scheduler_plugin=True) as client:
        with performance_report("memory://reports/one.html", client):
            pass
        with performance_report(tmp_path / "new" / "two.html.gz", client):
            pass
    with fsspec.open("memory://reports/one.html", "r") as file:
        assert "No graph was planned meanwhile" in file.read()
    with fsspec.open(tmp_path / "new" / "two.html.gz", "r", compression="gzip") as file:
        assert "No graph was planned meanwhile" in file.read()


def test_a_client_is_a_client():
    with pytest.raises(TypeError, match="client must be"):
        performance_report(client="tcp://here")


def test_an_error_of_the_block_is_not_hidden_by_one_of_the_report(cluster, tmp_path, caplog):
    with (
        Client(cluster, scheduler_plugin=True) as client,
        pytest.raises(KeyError, match="of the block"),
        performance_report(tmp_path, client),  # a directory cannot be written to
    ):
        raise KeyError("of the block")
    assert "no report was written" in caplog.text
    with (
        StockClient(cluster) as client,
        pytest.raises(IsADirectoryError),
        performance_report(tmp_path, client),
    ):
        pass


@gen_cluster(client=True, clean_kwargs={"threads": False})
async def test_asynchronous(c, s, a, b):
    await c.register_plugin(MarsSchedulerPlugin())
    with pytest.raises(TypeError, match="async with"):
        performance_report("memory://x.html", c).__enter__()
    async with performance_report("memory://async.html", c):
        await c.compute(da.ones((40, 40), chunks=10).sum())
    with fsspec.open("memory://async.html", "r") as file:
        page = file.read()
    assert "await c.compute(da.ones((40, 40), chunks=10).sum())" in page
    assert data_of(page)["observed"]["graphs"][0]["done"]
    await c.unregister_scheduler_plugin("marsched")


@gen_cluster(client=True, clean_kwargs={"threads": False})
async def test_a_client_that_goes_takes_its_recorder_with_it(c, s, a, b):
    before = set(s.plugins)
    async with StockClient(s.address, asynchronous=True) as other:
        await performance_report("memory://x.html", other).__aenter__()
        (recorder,) = (s.plugins[name] for name in set(s.plugins) - before)
    # The scheduler hears of it before the client is told that it may go.
    assert set(s.plugins) == before
    assert not recorder._ticking.is_running()


@gen_cluster(client=True, clean_kwargs={"threads": False})
async def test_a_block_that_outlives_its_recorder_has_no_report(c, s, a, b, caplog):
    """As when the scheduler was restarted."""
    before = set(s.plugins)
    async with performance_report("memory://lost.html", c):
        (name,) = set(s.plugins) - before
        s.remove_plugin(name)
    assert "no report" in caplog.text
