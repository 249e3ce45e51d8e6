"""Dataframes and bags: planned where it helps, left to Dask where not."""

import asyncio

import dask
import dask.bag as db
import pytest

from tests.harness import planned_cluster, report_of

dd = pytest.importorskip("dask.dataframe")
pd = pytest.importorskip("pandas")


def frame(partitions: int = 8) -> "dd.DataFrame":
    source = pd.DataFrame({"key": [i % 5 for i in range(80)], "value": range(80)})
    return dd.from_pandas(source, npartitions=partitions)


@planned_cluster()
async def test_dataframe_aggregation(c, s, *workers):
    graph = frame().groupby("key").value.sum()
    expected = graph.compute(scheduler="sync")
    pd.testing.assert_series_equal(await c.compute(graph), expected)
    assert report_of(s)["graphs_planned"] == 1


@pytest.mark.extended
@pytest.mark.parametrize("method", ["tasks", "p2p"])
@planned_cluster()
async def test_shuffle(c, s, *workers, method):
    with dask.config.set({"dataframe.shuffle.method": method}):
        shuffled = frame().shuffle("key", npartitions=6)
        sizes = await c.compute(shuffled.map_partitions(len))
        assert sorted(sizes[sizes > 0])[0] >= 16
        assert sum(sizes) == 80


@pytest.mark.parametrize("method", ["tasks", "p2p"])
@planned_cluster()
async def test_merge(c, s, *workers, method):
    with dask.config.set({"dataframe.shuffle.method": method}):
        left, right = frame(), frame(6)
        total = left.merge(right, on="key").value_x.sum()
        assert await c.compute(total) == 16 * sum(range(80))


@planned_cluster()
async def test_two_shuffles_at_once(c, s, *workers):
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        graphs = [frame().shuffle("key", npartitions=n).value.sum() for n in (4, 7)]
        assert await asyncio.gather(*c.compute(graphs)) == [sum(range(80))] * 2


@planned_cluster()
async def test_sort_and_persist(c, s, *workers):
    data = c.persist(frame())
    ordered = await c.compute(data.sort_values("value", ascending=False).head(3, compute=False))
    assert list(ordered.value) == [79, 78, 77]


@planned_cluster()
async def test_bag(c, s, *workers):
    bag = db.from_sequence(range(100), npartitions=10)
    graph = bag.map(lambda x: x + 1).filter(lambda x: x % 2).foldby(lambda x: x % 3, max, 0, max, 0)
    assert dict(await c.compute(graph)) == {0: 99, 1: 97, 2: 95}
    assert report_of(s)["graphs_planned"] == 1


@planned_cluster()
async def test_bag_to_dataframe(c, s, *workers):
    bag = db.from_sequence([{"a": i, "b": i * 2} for i in range(30)], npartitions=5)
    data = bag.to_dataframe(meta={"a": int, "b": int})  # else its first element is computed
    assert await c.compute(data.b.sum()) == 870
