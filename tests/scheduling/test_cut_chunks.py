"""Chunks and partitions that are cut into pieces: these are made in place, and dropped."""

import gc

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import scheduler as scheduler_module
from distributed.utils_test import async_poll_for

from tests.harness import planned_cluster


@pytest.mark.extended
@planned_cluster([("127.0.0.1", 1)] * 3)
async def test_chunks_that_are_cut_up_are_not_kept_from_being_forgotten(c, s, *workers):
    x = da.ones((3, 20 * 128), chunks=(1, 20 * 128)) + 1
    future = c.compute(x.rechunk((3, 128), method="tasks").sum())
    await future
    keys = set(s.tasks)
    assert len(keys) > 3
    del future
    await async_poll_for(lambda: not s.tasks, 10)

    def are_gone():
        gc.collect()  # which does nothing while another thread collects
        return keys.isdisjoint(ts.key for ts in scheduler_module.TaskState._instances)

    await async_poll_for(are_gone, 10)


_ROWS = 20_000


def _partition(start: int) -> pd.DataFrame:
    return pd.DataFrame({"x": np.ones(_ROWS)}, index=np.arange(start, start + _ROWS))


def _frame(start: int) -> dd.DataFrame:
    starts = [start + _ROWS * i for i in range(20)]
    divisions = [*starts, starts[-1] + _ROWS]
    return dd.from_map(_partition, starts, divisions=divisions, meta=_partition(0))


@planned_cluster([("127.0.0.1", 1)] * 3)
async def test_frames_without_a_common_label_are_aligned_where_their_partitions_are(c, s, *workers):
    """Each partition of one meets a piece of the same partition of the other, an empty one."""
    difference = _frame(0) - _frame(10 * _ROWS * 20)
    assert (await c.compute(difference.count())).tolist() == [0]
    moved = sum(worker.transfer_outgoing_bytes_total for worker in workers)
    assert moved < _partition(0).memory_usage().sum()
