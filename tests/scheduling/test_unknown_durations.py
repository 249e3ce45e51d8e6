"""A guess moves no data: what tasks of unknown duration take is not counted for a busy worker."""

from __future__ import annotations

import dask
from distributed import wait

from tests.harness import planned_cluster


@planned_cluster([("127.0.0.1", 1)] * 3, config={"distributed.scheduler.work-stealing": False})
async def test_a_task_stays_with_its_input_beside_tasks_of_new_kinds(c, s, *workers):
    assert await c.submit(len, b"x", key="known-0") == 1  # the duration of its kind is known now
    x = dask.delayed(bytes)(500_000)
    # Whether tasks are placed by name or backwards, there is one of another kind before it.
    keys = ["another-1", "known-1", "other-1"]
    ys = c.persist([dask.delayed(len)(x, dask_key_name=key) for key in keys])
    await wait(ys)
    assert {sum(key in w.data for key in keys) for w in workers} == {0, 3}
