"""Tasks without inputs are shared out over the workers, and a saturation that is set is heeded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import dask
import pytest
from dask import delayed
from distributed import Event
from distributed.utils_test import async_poll_for

from dask_marsched.scheduling.dispatch_of_withheld import Dispatcher, Placed
from dask_marsched.scheduling.free_slots import in_progress
from dask_marsched.simulation import Costs, simulate
from tests.harness import planned_cluster


def _tasks_of_workers(
    workers: int, threads: int, saturation: float, duration: Callable[[int], float]
) -> Counter[str]:
    """Run four tasks for each thread in the twin; their durations are not known beforehand."""
    names = [f"root-{i}" for i in range(4 * workers * threads)]
    seconds = {name: duration(i) for i, name in enumerate(names)}
    with dask.config.set({"distributed.scheduler.worker-saturation": saturation}):
        report = simulate(
            [delayed(abs)(i, dask_key_name=name) for i, name in enumerate(names)],
            workers=workers,
            threads=threads,
            costs=Costs(dict.fromkeys(names, 28), seconds),
            isolated=False,
        )
    assert report.timeline is not None
    return Counter(report.timeline.tasks.rows["worker"].tolist())


@pytest.mark.parametrize("saturation", [1.0, 1.1])
@pytest.mark.parametrize(("workers", "threads"), [(4, 2), (8, 1), (32, 1)])
@pytest.mark.parametrize(
    "duration",
    [
        pytest.param(lambda _: 1e-4, id="tiny"),
        pytest.param(lambda i: 1e-4 if i % 3 else 0.02, id="mixed"),
        pytest.param(lambda i: 0.05 if i else 1e-4, id="first tiny"),
        pytest.param(lambda _: 0.05, id="heavy"),
    ],
)
def test_tasks_are_shared_out(
    workers: int, threads: int, saturation: float, duration: Callable[[int], float]
) -> None:
    tasks = _tasks_of_workers(workers, threads, saturation, duration)
    assert len(tasks) == workers
    assert max(tasks.values()) <= 2 * 4 * threads


def test_tasks_on_one_input_that_all_read_are_shared_out() -> None:
    """Their workers do not wait for the one that made it: each gets a copy."""
    model = delayed(abs)(1, dask_key_name="model")
    names = [f"root-{i}" for i in range(100)]
    with dask.config.set({"distributed.scheduler.default-task-durations": {"root": 0.01}}):
        report = simulate(
            [delayed(max)(model, i, dask_key_name=name) for i, name in enumerate(names)],
            workers=4,
            threads=1,
            costs=Costs(
                {"model": 20_000_000} | dict.fromkeys(names, 28),
                {"model": 0.1} | dict.fromkeys(names, 0.01),
            ),
            isolated=False,
        )
    assert report.timeline is not None
    tasks = Counter(report.timeline.tasks.rows["worker"].tolist())
    assert len(tasks) == 4
    assert min(tasks.values()) >= 10


def test_paced_dispatch_fills_a_worker_once(monkeypatch: pytest.MonkeyPatch) -> None:
    paced, sent = Dispatcher._paced, []

    def watched(self: Dispatcher, now: float) -> Placed:
        placed = paced(self, now)
        having = Counter(ws for _, ws in placed)
        sent.extend((in_progress(ws) + more) / ws.nthreads for ws, more in having.items())
        return placed

    monkeypatch.setattr(Dispatcher, "_paced", watched)
    _tasks_of_workers(100, 1, 1.1, lambda i: 0.3 if i % 3 else 0.06)
    assert max(sent) == 1


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
