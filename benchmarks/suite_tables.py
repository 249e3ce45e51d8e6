"""Compares what other people's suites took with the bars of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.verdicts import Bar
from dask_marsched.bench import report
from dask_marsched.bench.metrics import STOCK, Measurement, Row, aggregate, summarise

#: Bytes moved under stock above which bytes are compared; the other axes are for all.
MOVING = 25 * 2**20
NOTE = (
    "x: ratio to stock in the same repetition, median over the repetitions. Geometric means are "
    "over all, that of the bytes over those that move more than 25 MiB under stock."
)


def rows_of(measured: Sequence[Measurement]) -> list[Row]:
    """Aggregate measurements; a row moves data if it moves more than 25 MiB under stock."""
    rows = aggregate(measured)
    stock = {row.workload: row.medians["moved"] or 0 for row in rows if row.policy == STOCK}
    return [replace(row, moves=stock.get(row.workload, 0) > MOVING) for row in rows]


def misses(row: Row, bars: Mapping[str, Bar]) -> list[str]:
    """Return the axes on which a row exceeds its bar, and other faults."""
    found = ["failed"] if row.failed else []
    found += ["results differ"] if row.identical is False else []
    for axis, bar in {} if row.policy == STOCK else bars.items():
        value = row.ratios[axis]
        if value is not None and round(value, 2) > bar.worst and (axis != "moved" or row.moves):
            found.append(axis)
    return found


def tables(rows: Sequence[Row], bars: Mapping[str, Bar]) -> list[report.Cells]:
    """Return the table of the rows with a verdict for each, and that of the geometric means."""
    head, *lines = report.row_cells(rows)
    shown = [[*head, "verdict"]]
    for row, line in zip(rows, lines, strict=True):
        found = misses(row, bars)
        shown.append([*line, "above: " + ", ".join(found) if found else "-"])
    moving = [s for s in summarise(rows) if s.axis == "moved"]
    others = [s for s in summarise([replace(r, moves=True) for r in rows]) if s.axis != "moved"]
    return [shown, report.summary_cells([*moving, *others])]
