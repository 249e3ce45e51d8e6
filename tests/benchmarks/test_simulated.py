"""The table of `bench --simulated`: what workers hold, and what the scheduler knows of it."""

from __future__ import annotations

from benchmarks import simulated
from benchmarks.simulated import Simulated

MIB = 2**20


def _one(policy: str, **values: int | float) -> Simulated:
    made = {"moved": 100 * MIB, "memory": 40 * MIB, "managed": 20 * MIB, "seconds": 2.0}
    return Simulated("w", policy, 4, **{**made, **values})  # type: ignore[arg-type]


def test_what_workers_hold_and_what_the_scheduler_knows_are_two_axes() -> None:
    found = [_one("stock"), _one("default", memory=30 * MIB, managed=30 * MIB)]
    assert simulated.ratios(found)[4, "default", "w"]["memory"] == 0.75
    assert simulated.ratios(found)[4, "default", "w"]["managed"] == 1.5
    head, _, row = simulated.cells(found)
    assert row[head.index("memory MiB") + 1] == "0.75"
    assert row[head.index("managed MiB") + 1] == "1.50"


def test_a_workload_that_fails_fills_its_row() -> None:
    head, row = simulated.cells([Simulated("w", "stock", 4, error="ValueError: no")])
    assert len(head) == len(row)
    assert row[3] == "ValueError: no"


def test_means_are_of_workloads_that_move() -> None:
    still = [Simulated("s", p, 4, moved=MIB, memory=99 * MIB, managed=MIB) for p in ("stock", "d")]
    found = [_one("stock"), _one("d", memory=10 * MIB), *still]
    rows = {row[2]: row for row in simulated.summary_cells(found)[1:]}
    assert rows["memory"][3:6] == ["1", "0.250", "0.25"]
