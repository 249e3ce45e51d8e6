"""Workers with a free thread are found without scanning all workers for each result."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dask_marsched.policies.slots import SlotRule
from dask_marsched.scheduling.free_slots import FreeSlots


class _Worker(SimpleNamespace):
    __hash__ = object.__hash__
    __eq__ = object.__eq__


class _Cluster:
    """Workers with one thread and a task each."""

    shares_out_more = False

    def __init__(self, workers: int) -> None:
        self.workers = [
            _Worker(number=i, nthreads=1, processing=[None], long_running=())
            for i in range(workers)
        ]
        self.looked_at = 0
        scheduler: Any = SimpleNamespace(
            running=set(self.workers), idle_task_count=set(self.workers)
        )
        self.free_slots = FreeSlots(scheduler, self, lambda ws: ws.number)  # type: ignore[arg-type]
        self.rule = SlotRule()

    def has_free_slot(self, nthreads: int, in_progress: int) -> bool:
        self.looked_at += 1
        return self.rule.has_free_slot(nthreads, in_progress)

    def ends(self, number: int, heard_of: bool = True) -> None:
        self.workers[number].processing.clear()
        if heard_of:
            self.free_slots.finished[self.workers[number]] = None  # type: ignore[index]

    def free(self, now: float) -> set[int]:
        found: Any = self.free_slots.candidates(now)
        self.free_slots.dispatched()
        return {ws.number for ws in found if not ws.processing}


@pytest.mark.parametrize("workers", [4, 64, 65, 1000])
def test_a_worker_that_has_finished_a_task_is_found(workers: int) -> None:
    cluster = _Cluster(workers)
    assert cluster.free(0.0) == set()
    cluster.ends(3)
    assert cluster.free(0.01) == {3}
    cluster.ends(2)
    assert cluster.free(0.02) == {2, 3}


def test_many_workers_are_not_scanned_for_each_result() -> None:
    cluster = _Cluster(1000)
    cluster.free(0.0)
    cluster.looked_at = 0
    for number in range(100):
        cluster.ends(number)
        assert number in cluster.free(0.01)
        cluster.workers[number].processing.append(None)
    assert cluster.looked_at <= 200


def test_other_free_workers_are_found_by_the_next_scan() -> None:
    cluster = _Cluster(1000)
    cluster.free(0.0)
    cluster.ends(7, heard_of=False)
    assert cluster.free(0.01) == {7}
    cluster.ends(8, heard_of=False)
    cluster.ends(9)
    assert cluster.free(0.02) == {7, 9}
    cluster.ends(10)
    assert cluster.free(0.07) == {7, 8, 9, 10}


def test_busy_workers_are_candidates_in_turn() -> None:
    cluster = _Cluster(100)
    found = set()
    for _ in range(7):
        turn: Any = cluster.free_slots.candidates(0.0)
        assert len(turn) == 16
        found |= {ws.number for ws in turn}
    assert found == set(range(100))
