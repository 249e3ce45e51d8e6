"""Tiny tasks are shared out over the workers, and a saturation that the user sets is heeded."""

from __future__ import annotations

from collections import Counter

import dask
import pytest
from dask import delayed
from distributed import Event
from distributed.utils_test import async_poll_for

from dask_marsched.simulation import Costs, simulate
from tests.compat.harness import planned_cluster


@pytest.mark.parametrize("saturation", [1.0, 1.1])
@pytest.mark.parametrize(("workers", "threads"), [(4, 2), (8, 1), (32, 1)])
def test_tiny_tasks_are_shared_out(workers: int, threads: int, saturation: float) -> None:
    names = [f"tiny-{i}" for i in range(4 * workers * threads)]
    with dask.config.set({"distributed.scheduler.worker-saturation": saturation}):
        report = simulate(
            [delayed(abs)(i, dask_key_name=name) for i, name in enumerate(names)],
            workers=workers,
            threads=threads,
            costs=Costs(dict.fromkeys(names, 28), dict.fromkeys(names, 1e-4)),
            isolated=False,
        )
    assert report.timeline is not None
    of_worker = Counter(report.timeline.tasks.rows["worker"].tolist())
    assert len(of_worker) == workers
    assert max(of_worker.values()) <= 2 * 4 * threads


@pytest.mark.parametrize(("saturation", "expected"), [(2.5, (5, 3)), (1.0, (2, 1)), (0.1, (1, 1))])
def test_a_saturation_other_than_the_default(saturation: float, expected: tuple[int, int]) -> None:
    @planned_cluster(
        [("", 2), ("", 1)], config={"distributed.scheduler.worker-saturation": saturation}
    )
    async def waiting(c, s, a, b):
        event = Event()
        futures = c.map(lambda _: event.wait(), range(16), pure=False)
        sent = {a.address: expected[0], b.address: expected[1]}
        await async_poll_for(
            lambda: sent == {ws.address: len(ws.processing) for ws in s.workers.values()}, 5
        )
        assert len(s.queued) == 16 - sum(expected)
        await event.set()
        await c.gather(futures)

    waiting()
