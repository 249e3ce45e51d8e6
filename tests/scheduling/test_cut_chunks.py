"""Records of chunks that are cut into pieces are dropped with the chunks."""

import gc

import dask.array as da
import pytest
from distributed import scheduler as scheduler_module
from distributed.utils_test import async_poll_for

from tests.compat.harness import planned_cluster


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
