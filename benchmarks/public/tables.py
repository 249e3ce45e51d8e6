"""Compares what the public suite took with the project's bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.verdicts import Bar
from dask_marsched.bench import report
from dask_marsched.bench.metrics import STOCK, Row, summarise

BARS: Mapping[str, Bar] = {
    "seconds": Bar(0.65, 1.05),
    "moved": Bar(0.15, 1.05),
    "managed": Bar(0.60, 1.05),
    "pss": Bar(0.92, 1.05),
}
#: Bytes moved under stock above which the bar on bytes applies.
MOVING = 25 * 2**20


def misses(row: Row) -> list[str]:
    """Return the axes on which a test exceeds its bar, and other faults."""
    found = ["failed"] if row.failed else []
    for axis, bar in {} if row.policy == STOCK else BARS.items():
        value = row.ratios[axis]
        if value is not None and round(value, 2) > bar.worst and (axis != "moved" or row.moves):
            found.append(axis)
    return found


def tables(rows: Sequence[Row]) -> list[report.Cells]:
    """Return the tables of the tests and of the geometric means.

    Bytes count for tests that move more than 25 MiB, the other axes for all.
    """
    head, *lines = report.row_cells(rows)
    tests = [[*head, "verdict"]]
    for row, line in zip(rows, lines, strict=True):
        tests.append([*line, "above: " + ", ".join(misses(row)) if misses(row) else "-"])
    moving = [s for s in summarise(rows) if s.axis == "moved"]
    others = [s for s in summarise([replace(r, moves=True) for r in rows]) if s.axis != "moved"]
    return [tests, report.summary_cells([*moving, *others])]


def with_moving(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, which move data if they move more than 25 MiB under stock."""
    stock = {row.workload: row.medians["moved"] or 0 for row in rows if row.policy == STOCK}
    return [replace(row, moves=stock.get(row.workload, 0) > MOVING) for row in rows]
