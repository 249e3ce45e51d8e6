"""Everything that meets everything runs in tiles: less moves, and no more is held."""

from __future__ import annotations

from typing import Any

import dask.array as da
import pytest

from dask_marsched.policies import assignment
from dask_marsched.simulation import SimulationReport, simulate

WORKERS = 8


def matrix(seed: int) -> Any:
    return da.random.default_rng(seed).random((8 * 512, 8 * 512), chunks=512)


def product() -> Any:
    return matrix(0) @ matrix(1)


def covariance() -> Any:
    return da.cov(matrix(0))


def run(collection: Any, policy: str = "default", **more: Any) -> Any:
    report: SimulationReport = simulate(
        collection,
        workers=WORKERS,
        threads=4,
        hosts=WORKERS,
        policy=policy,
        timeline=False,
        **more,
    )
    assert policy == "stock" or report.plugin["exceptions"] == {}
    return report


@pytest.mark.extended
@pytest.mark.parametrize("collection", [product, covariance])
def test_tiles_move_less_and_hold_no_more_than_stock_dask(collection, monkeypatch):
    # All three in this process, as moves depend a little on the hash seed.
    stock = run(collection(), "stock", isolated=False)
    found = run(collection(), isolated=False)
    monkeypatch.setattr(assignment, "with_tiles", lambda graph, units, workers: units)
    without = run(collection(), isolated=False)
    assert found.bytes_moved < 0.9 * without.bytes_moved
    assert found.peak_memory <= stock.peak_memory
    assert found.makespan <= 1.05 * stock.makespan
    assert found.tasks_recomputed == 0


@pytest.mark.extended
def test_a_tile_whose_worker_dies_is_run_by_others():
    whole = run(product())
    found = run(product(), faults=[(whole.makespan / 2, "kill", 3)])
    assert found.tasks == whole.tasks
    assert found.tasks_recomputed > 0
