"""A guess moves no data: what tasks of untried layers take is not counted for a busy worker."""

from __future__ import annotations

import dask
from distributed import wait

from tests.harness import planned_cluster

THREE = [("127.0.0.1", 1)] * 3
NO_STEALING = {"distributed.scheduler.work-stealing": False}


@planned_cluster(THREE, config=NO_STEALING)
async def test_a_task_stays_with_its_input_beside_tasks_of_new_kinds(c, s, *workers):
    assert await c.submit(len, b"x", key="known-0") == 1  # the duration of its kind is known now
    x = dask.delayed(bytes)(500_000)
    # Whether tasks are placed by name or backwards, there is one of another kind before it.
    keys = ["another-1", "known-1", "other-1"]
    ys = c.persist([dask.delayed(len)(x, dask_key_name=key) for key in keys])
    await wait(ys)
    assert {sum(key in w.data for key in keys) for w in workers} == {0, 3}


@planned_cluster(THREE, config=NO_STEALING)
async def test_a_task_stays_with_its_input_beside_one_whose_name_a_long_one_has(c, s, *workers):
    # As if a merge and a slice were joined, under the name of the slice.
    assert await c.submit(len, b"x", key=("slice-of-a-merge", 0)) == 1
    s.task_prefixes["slice-of-a-merge"].add_duration("compute", 0, 60)
    x = dask.delayed(bytes)(500_000)
    keys = [(f"slice-of-a-merge-{n:032x}", 0) for n in range(3)]
    ys = c.persist([dask.delayed(len)(x, dask_key_name=key) for key in keys])
    await wait(ys)
    assert {sum(key in w.data for key in keys) for w in workers} == {0, 3}
