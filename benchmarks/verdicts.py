"""Compares measurements with the project's bars, and with Frisky."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dask_marsched.bench import report, workloads
from dask_marsched.bench.metrics import STOCK, Row, Summary, aggregate, summarise
from dask_marsched.bench.report import Cells, ratio_text
from dask_marsched.bench.runner import Outcome
from dask_marsched.bench.workloads import Kind

FRISKY = "frisky"
REFERENCES = frozenset({STOCK, FRISKY})  # no bar applies to them
FRISKY_NOTE = (
    "Bytes moved under Frisky are those that its workers report as received, before compression. "
    "Its PSS is that of its worker processes. It reports neither the peak of managed bytes nor "
    "tasks sent."
)


@dataclass(frozen=True)
class Bar:
    """Upper bounds of the ratios to stock along one axis.

    Attributes
    ----------
    mean : float
        For the geometric mean over the workloads that move data.
    worst : float
        For each of them.
    """

    mean: float
    worst: float


BARS: Mapping[str, Bar] = {
    "moved": Bar(0.15, 1.0),
    "managed": Bar(0.85, 1.10),
    "seconds": Bar(0.95, 1.10),
}
OVERHEAD_BAR = 1.05  # of stock's wall time, for workloads of the kind OVERHEAD


def misses(row: Row) -> tuple[str, ...] | None:
    """Return the axes on which a row exceeds its bar, and other faults; None if nothing applies."""
    found = ["failed"] if row.failed else []
    if row.identical is False:
        found.append("results differ")
    limits = {axis: bar.worst for axis, bar in BARS.items()} if row.moves else {}
    if workloads.get(row.workload).kind is Kind.OVERHEAD:
        limits["seconds"] = OVERHEAD_BAR
    if row.policy.partition("#")[0] in REFERENCES:
        limits = {}
    for axis, limit in limits.items():
        ratio = row.ratios[axis]
        if ratio is not None and _exceeds(ratio, limit):
            found.append(axis)
    return tuple(found) if found or limits else None


def met(summary: Summary) -> bool | None:
    """Return whether a summary meets its bars; None if none applies."""
    bar = BARS.get(summary.axis)
    if bar is None or summary.policy.partition("#")[0] in REFERENCES:
        return None
    return not _exceeds(summary.mean, bar.mean) and not _exceeds(summary.worst, bar.worst)


def _exceeds(ratio: float, limit: float) -> bool:
    """Compare two decimals: a few hundred bytes of messages do not miss a bar."""
    return round(ratio, 2) > limit


def row_cells(rows: Sequence[Row]) -> Cells:
    """Return the table of workloads and policies with a verdict for each."""
    verdicts = ["verdict"]
    for row in rows:
        found = misses(row)
        verdicts.append("-" if found is None else "above: " + ", ".join(found) if found else "ok")
    cells = report.row_cells(rows)
    return [[*line, verdict] for line, verdict in zip(cells, verdicts, strict=True)]


def summary_cells(summaries: Sequence[Summary]) -> Cells:
    """Return the table of geometric means with the bars and a verdict for each."""
    head, *lines = report.summary_cells(summaries)
    cells = [[*head[:4], "bar", head[4], "bar", head[5], "verdict"]]
    for s, line in zip(summaries, lines, strict=True):
        bar = BARS.get(s.axis)
        mean, worst = (ratio_text(b) for b in ((bar.mean, bar.worst) if bar else (None, None)))
        verdict = {True: "met", False: "not met", None: "-"}[met(s)]
        cells.append([*line[:4], mean, line[4], worst, line[5], verdict])
    return cells


def tables(outcome: Outcome) -> tuple[list[Cells], list[str]]:
    """Return the tables of an outcome, and the notes below them."""
    rows = aggregate(outcome.measurements)
    shown = [row_cells(rows), summary_cells(summarise(rows))]
    notes = [report.failures(rows), report.NOTE]
    peers = _against_frisky(outcome)
    if peers:
        shown.append(report.summary_cells(peers))
        notes.append(f"The last table has ratios to Frisky. {FRISKY_NOTE}")
    return shown, notes


def to_json(outcome: Outcome) -> dict[str, Any]:
    """Return everything measured as a JSON-able dict."""
    rows = aggregate(outcome.measurements)
    return {
        **report.to_json(outcome, rows),
        "rows": [{**asdict(row), "misses": misses(row) or ()} for row in rows],
        "summaries": [{**asdict(s), "met": met(s)} for s in summarise(rows)],
        "against_frisky": [asdict(s) for s in _against_frisky(outcome)],
    }


def _against_frisky(outcome: Outcome) -> list[Summary]:
    rows = aggregate(outcome.measurements, base=FRISKY)
    return summarise(rows, FRISKY) if any(row.policy == FRISKY for row in rows) else []
