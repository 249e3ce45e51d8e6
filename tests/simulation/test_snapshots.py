"""Bytes moved and held on the named workloads change only on purpose."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.simulation import snapshots

HOW = "if that is meant: python -m tests.simulation.snapshots --update"


#: Quick ones that differ: a reduction, a join, a product, a transposition, a shuffle.
FEW = ("thin-column-sum", "binary-mean", "gram-matrix", "add-transpose", "rechunk-p2p")


@pytest.mark.parametrize(
    "names", [FEW, pytest.param(None, marks=pytest.mark.extended)], ids=["few", "all"]
)
def test_bytes_moved_and_held_are_as_on_record(names: Sequence[str] | None) -> None:
    made_with, old = snapshots.read()
    if made_with != snapshots.version():
        pytest.skip(f"the numbers are those of distributed {made_with}")
    if names is not None:
        old = {row: old[row] for row in old if row.removesuffix(" apart") in names}
        assert len(old) == 2 * len(names)
    changed = snapshots.differences(old, snapshots.take(names))
    assert not changed, "\n".join([HOW, *changed])


def test_every_workload_is_on_record() -> None:
    _, old = snapshots.read()
    assert snapshots.rows() == list(old)
    for by_workers in old.values():
        assert set(by_workers) == {str(workers) for workers in snapshots.WORKERS}
        assert all(numbers["peak"] > 0 for numbers in by_workers.values())


def test_differences_name_what_changed() -> None:
    old = {"sum": {"4": {"moved": 100, "peak": 50}, "16": {"moved": 0, "peak": 1}}}
    new = {"sum": {"4": {"moved": 150, "peak": 50}, "16": {"moved": 2, "peak": 1}}}
    assert snapshots.differences(old, old) == []
    assert snapshots.differences(old, new) == [
        "sum, 4 workers, moved: 100 -> 150 (1.50)",
        "sum, 16 workers, moved: 0 -> 2",
    ]
    assert snapshots.differences({}, {"new": {"4": {"moved": 1, "peak": 2}}}) == [
        "new, 4 workers, moved: None -> 1",
        "new, 4 workers, peak: None -> 2",
    ]
