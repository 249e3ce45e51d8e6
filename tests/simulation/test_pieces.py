"""The pieces of a rechunk are cut where the chunk is."""

from collections import Counter

import dask.array as da
import numpy as np
import pytest
from dask.utils import key_split

from dask_marsched.simulation import SimulationReport, simulate


def simulated(policy: str, bands: int, workers: int) -> SimulationReport:
    """Bands are merged into a few large chunks, and these cut into as many columns."""
    x = da.random.default_rng(1).random((bands * 256, bands * 64), chunks=(256, bands * 64))
    third = x.nbytes // 3 + x.nbytes // bands
    columns = x.rechunk((x.shape[0], 64), method="tasks", block_size_limit=third)
    y = da.map_blocks(np.sort, columns, axis=0, dtype=x.dtype)[::64].sum(axis=0)
    return simulate(y, policy=policy, workers=workers)


def fetched(report: SimulationReport) -> Counter[str]:
    """How many results of each group a worker has that did not compute them."""
    assert report.timeline
    ran = {key: worker for key, worker, *_ in report.timeline.tasks}
    changes = report.timeline.changes
    return Counter(key_split(k) for _, w, k, nbytes in changes if nbytes > 0 and ran[k] != w)


@pytest.mark.extended
@pytest.mark.parametrize("workers", [3, 4, 6])
def test_no_large_chunk_is_fetched_to_be_cut(workers: int) -> None:
    stock, ours = (simulated(policy, 30, workers) for policy in ("stock", "default"))
    assert fetched(stock)["rechunk-merge"] > 0
    assert fetched(ours)["rechunk-merge"] == 0
    assert ours.bytes_moved < 0.5 * stock.bytes_moved
    assert ours.plugin["exceptions"] == {}


@pytest.mark.extended
def test_where_there_are_too_few_for_all_threads_the_others_fetch_one() -> None:
    assert fetched(simulated("default", 30, 12))["rechunk-merge"] > 0
