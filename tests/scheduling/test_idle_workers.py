"""Of many idle workers a task is offered to a few, and only those are ranked."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from dask_marsched.scheduling.task_placement import TaskPlacement


class _Worker(SimpleNamespace):
    __hash__ = object.__hash__
    __eq__ = object.__eq__


def test_a_few_of_a_thousand_idle_workers_are_considered() -> None:
    draw = random.Random(0)
    addresses = [str(i) for i in range(1000)]
    workers = [_Worker(address=a, processing=[None][: draw.random() < 0.2]) for a in addresses]
    draw.shuffle(addresses)  # the order of joining
    ranks = {address: rank for rank, address in enumerate(addresses)}
    scheduler: Any = SimpleNamespace(idle={ws.address: ws for ws in workers if draw.random() < 0.9})
    policies: Any = None
    placement = TaskPlacement(scheduler, policies, lambda ws: ranks[ws.address], addresses)
    there: Any = {ws: draw.randrange(3) for ws in draw.sample(workers, 5)}

    def rank(ws: Any) -> tuple[int, int]:
        return -there.get(ws, 0), ranks[ws.address]

    found = placement._idle(there)
    idle = [ws for ws in scheduler.idle.values() if not ws.processing]
    assert sorted(found, key=rank)[:8] == sorted(idle, key=rank)[:8]
    assert len(found) <= 13 < len(idle)
