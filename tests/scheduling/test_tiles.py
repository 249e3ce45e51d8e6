"""Products in tiles on a real cluster give equal results and leave no records behind."""

import dask.array as da
import numpy as np
import pytest
from distributed.utils_test import async_poll_for

from dask_marsched.policies.planning import tiles
from dask_marsched.policies.planning.plan_search import Search
from dask_marsched.scheduling import plan_finder
from tests.harness import planned_cluster, plugin_of


def matrix(seed):
    return da.random.default_rng(seed).integers(0, 9, (8, 8), chunks=1)


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Take tiles whatever the forecast says: it is about larger chunks."""
    for bound in ("_MOST_OF_STOCK", "_MORE"):
        monkeypatch.setattr(tiles, bound, float("inf"))
    monkeypatch.setattr(plan_finder, "extent_of_search", lambda *_: Search.BEFORE_START)
    monkeypatch.setattr(tiles, "cost", lambda plan, stock: plan.moved)


@pytest.mark.extended
@planned_cluster([("127.0.0.1", 2)] * 4)
async def test_products_in_tiles_are_equal_and_forgotten(c, s, *workers):
    x, y = matrix(0), matrix(1)
    expected = x.compute(scheduler="sync") @ y.compute(scheduler="sync")
    future = c.compute(x @ y)
    planner = plugin_of(s)._engine.planner
    await async_poll_for(lambda: planner.tiled, 10)
    np.testing.assert_array_equal(await future, expected)
    del future
    await async_poll_for(lambda: not s.tasks, 10)
    assert not planner.tiled


@pytest.mark.extended
@planned_cluster([("127.0.0.1", 1)] * 4)
async def test_tiles_survive_the_loss_of_a_worker(c, s, *workers):
    x = matrix(0)
    expected = x.compute(scheduler="sync")
    future = c.compute(x @ x)
    await async_poll_for(lambda: plugin_of(s)._engine.planner.tiled, 10)
    await workers[1].close()
    np.testing.assert_array_equal(await future, expected @ expected)
