"""What all chunks are combined with (a model) is copied to the workers, not the chunks to it."""

from __future__ import annotations

import dask
import pytest
from dask.delayed import Delayed

from dask_marsched.simulation import SimulationReport, simulate
from dask_marsched.simulation.costs.costs import Costs

MB = 2**20
CHUNKS, WORKERS = 80, 4


def load(i: int) -> int:
    return i


def predict(chunk: int, model: int) -> int:
    return chunk + model


def predictions(model: int) -> tuple[list[Delayed], Costs]:
    """Return what applies a model of a size to chunks of a megabyte, and the costs of that."""
    nbytes, seconds = {"model": model}, {"model": 0.1}
    shared = dask.delayed(load)(-1, dask_key_name="model")
    results = []
    for i in range(CHUNKS):
        chunk = dask.delayed(load)(i, dask_key_name=("load", i))
        results.append(dask.delayed(predict)(chunk, shared, dask_key_name=("predict", i)))
        nbytes |= {("load", i): MB, ("predict", i): 1000}
        seconds |= {("load", i): 0.05, ("predict", i): 0.1}
    return results, Costs(nbytes, seconds)


def run(model: int, policy: str = "default") -> SimulationReport:
    results, costs = predictions(model)
    report = simulate(results, workers=WORKERS, policy=policy, costs=costs, isolated=False)
    assert policy == "stock" or report.plugin["exceptions"] == {}
    return report


@pytest.mark.parametrize("model", [MB // 4, 4 * MB, 40 * MB, 200 * MB])
def test_all_workers_take_part(model):
    report, stock = run(model), run(model, "stock")
    assert report.bytes_moved <= (WORKERS - 1) * model + CHUNKS * MB / 2
    assert report.makespan <= 1.1 * stock.makespan
    assert report.peak_memory <= 1.1 * stock.peak_memory


def test_a_model_that_takes_longer_to_copy_than_all_the_work_stays_where_it_is():
    assert run(4000 * MB).makespan <= 1.05 * run(4000 * MB, "stock").makespan
