"""dask.array on a scheduler with the plugin: persisted inputs, P2P, unknown chunks, xarray."""

import asyncio

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait
from distributed.utils_test import async_poll_for

from tests.harness import planned_cluster, report_of


def field(seed: int = 0, size: int = 60, chunk: int = 20) -> da.Array:
    return da.random.default_rng(seed).random((size, size), chunks=chunk)


@planned_cluster()
async def test_binary_operation_and_reduction(c, s, *workers):
    x, y = field(0), field(1)
    expected = (x + y).mean().compute(scheduler="sync")
    assert await c.compute((x + y).mean()) == expected
    report = report_of(s)
    assert report["graphs_planned"] == 1
    assert report["operands_placed"] > 9
    assert report["exact_sizes"] > 0


@planned_cluster()
async def test_several_graphs_and_clients_at_once(c, s, *workers):
    async with Client(s.address, asynchronous=True) as other:
        x, y = field(0), field(1)
        graphs = [(x + i).sum(axis=0) @ y for i in range(4)]
        expected = dask.compute(*graphs, scheduler="sync")
        futures = [(c, other)[i % 2].compute(graph) for i, graph in enumerate(graphs)]
        for future, value in zip(futures, expected, strict=True):
            np.testing.assert_array_equal(await future, value)
    assert report_of(s)["graphs_planned"] == 4


@planned_cluster()
async def test_graph_on_persisted_inputs(c, s, *workers):
    x = c.persist(field())
    await wait(x)
    value = await c.compute((x[1:] - x[:-1]).sum())
    assert value == (field()[1:] - field()[:-1]).sum().compute(scheduler="sync")
    assert report_of(s)["graphs_planned"] == 2


@pytest.mark.extended
@planned_cluster()
async def test_graph_on_inputs_still_being_computed(c, s, *workers):
    x = c.persist(field())
    y = c.persist(x + x.T)
    assert await c.compute(y.sum()) == (field() + field().T).sum().compute(scheduler="sync")


@planned_cluster()
async def test_same_keys_again(c, s, *workers):
    graph = (field() + 1).sum(axis=0)
    expected = graph.compute(scheduler="sync")
    first = c.compute(graph)
    second = c.compute(graph)  # while the first runs
    np.testing.assert_array_equal(await first, expected)
    np.testing.assert_array_equal(await second, expected)
    third = c.compute(graph)  # while its result is there
    np.testing.assert_array_equal(await third, expected)
    del first, second, third
    await async_poll_for(lambda: not s.tasks, 5)
    np.testing.assert_array_equal(await c.compute(graph), expected)  # from scratch


@pytest.mark.parametrize("method", ["tasks", "p2p"])
@planned_cluster()
async def test_rechunk(c, s, *workers, method):
    x = field()
    graph = (x.rechunk((60, 10), method=method) * 2).rechunk((10, 60), method=method)
    np.testing.assert_array_equal(
        await c.compute(graph), (x * 2).compute(scheduler="sync"), strict=True
    )


@pytest.mark.extended
@planned_cluster()
async def test_p2p_rechunk_of_many_chunks_with_their_consumers(c, s, *workers):
    x = field(size=80, chunk=5)
    graph = (x.rechunk((80, 4), method="p2p") + 1).sum(axis=0)
    np.testing.assert_allclose(
        await c.compute(graph), (x + 1).sum(axis=0).compute(scheduler="sync")
    )


@planned_cluster()
async def test_unknown_chunks(c, s, *workers):
    x = field()
    graph = (x[x > 0.5] * 2).sum()
    assert await c.compute(graph) == graph.compute(scheduler="sync")


@planned_cluster()
async def test_overlap_cumulation_and_decomposition(c, s, *workers):
    x = field()
    graphs = [
        x.map_overlap(lambda block: block + np.roll(block, 1, 0), depth=1, boundary="periodic"),
        x.cumsum(axis=0),
        da.linalg.qr(x.rechunk((20, 60)))[1],
    ]
    expected = dask.compute(*graphs, scheduler="sync")
    values = await asyncio.gather(*c.compute(graphs))
    for value, right in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, right)


@planned_cluster()
async def test_matrix_product(c, s, *workers):
    x = field()
    np.testing.assert_allclose(await c.compute(x @ x.T), (x @ x.T).compute(scheduler="sync"))


@pytest.mark.parametrize("planning", [False, True])
@planned_cluster()
async def test_both_settings_of_query_planning(c, s, *workers, planning):
    with dask.config.set({"array.query-planning": planning}):
        x = field()
        graph = ((x - x.mean(axis=0)) ** 2).mean(axis=0)
        expected = graph.compute(scheduler="sync")
        np.testing.assert_array_equal(await c.compute(graph), expected)


@planned_cluster()
async def test_optimization_off(c, s, *workers):
    graph = ((field() + 1) * 2).sum()
    value = await c.compute(graph, optimize_graph=False)
    assert value == graph.compute(scheduler="sync")


@planned_cluster()
async def test_xarray_climatology(c, s, *workers):
    xr = pytest.importorskip("xarray")
    pd = pytest.importorskip("pandas")
    time = pd.date_range("2001-01-01", periods=48, freq="12h")
    data = xr.DataArray(
        da.random.default_rng(0).random((48, 8, 8), chunks=(6, 4, 8)),
        dims=("time", "latitude", "longitude"),
        coords={"time": time},
    )
    anomaly = (data.groupby("time.hour") - data.groupby("time.hour").mean()).mean("longitude")
    expected = anomaly.compute(scheduler="sync")
    xr.testing.assert_allclose(await c.compute(anomaly), expected)
    assert report_of(s)["graphs_planned"] == 1


@pytest.mark.slow
@planned_cluster(config={"distributed.scheduler.worker-saturation": float("inf")})
async def test_without_queuing(c, s, *workers):
    graph = (field(size=100, chunk=5) + 1).sum(axis=1)
    np.testing.assert_array_equal(await c.compute(graph), graph.compute(scheduler="sync"))
    assert report_of(s)["withheld"]


@pytest.mark.extended
@pytest.mark.parametrize("saturation", [1.0, 1.1, 3.0])
@planned_cluster()
async def test_saturations(c, s, *workers, saturation):
    s.WORKER_SATURATION = saturation
    graph = (field(size=100, chunk=10) + 1).sum(axis=1)
    np.testing.assert_array_equal(await c.compute(graph), graph.compute(scheduler="sync"))
