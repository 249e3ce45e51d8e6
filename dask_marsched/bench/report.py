"""Tables of a benchmark, for the terminal and for the docs, and its JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from dask_marsched.bench.metrics import AXES, BARS, FRISKY, STOCK, Row, Summary, summarise
from dask_marsched.bench.runner import Outcome

MIB = 2**20
_BYTES = ("moved", "managed", "pss")
_TITLES = {
    "moved": "moved MiB",
    "managed": "managed MiB",
    "pss": "PSS MiB",
    "seconds": "seconds",
    "cpu": "CPU s",
    "sent": "tasks sent",
}
Cells = list[list[str]]


def versions() -> dict[str, str]:
    """Return the versions that a measurement depends on."""
    found = {"python": platform.python_version()}
    for name in ("dask-marsched", "dask", "distributed", "numpy", "xarray"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _value(axis: str, value: float | None) -> str:
    if value is None:
        return "-"
    if axis in _BYTES:
        return f"{value / MIB:.1f}" if value < 100 * MIB else f"{value / MIB:.0f}"
    return f"{value:.2f}" if axis in ("seconds", "cpu") else f"{value:.0f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def row_cells(rows: Sequence[Row]) -> Cells:
    """Return the table of workloads and policies, its head first."""
    head = ["workload", "policy"]
    for axis in AXES:
        head += [_TITLES[axis], "x"]
    cells = [[*head, "same", "verdict"]]
    for row in rows:
        line = [row.workload, row.policy]
        for axis in AXES:
            line += [_value(axis, row.medians[axis]), _ratio(row.ratios[axis])]
        same = {True: "yes", False: "NO", None: "-"}[row.identical]
        misses = row.misses()
        verdict = "above: " + ", ".join(misses) if misses else ("ok" if row.judged() else "-")
        cells.append([*line, same, verdict])
    return cells


def summary_cells(summaries: Sequence[Summary]) -> Cells:
    """Return the table of geometric means, its head first."""
    cells = [["policy", "axis", "workloads", "geomean x", "bar", "worst x", "bar", "of", "verdict"]]
    for s in summaries:
        bar = BARS.get(s.axis)
        verdict = {True: "met", False: "not met", None: "-"}[s.verdict()]
        cells.append(
            [
                s.policy,
                _TITLES[s.axis].removesuffix(" MiB"),
                str(s.workloads),
                _ratio(s.mean),
                _ratio(bar.mean if bar else None),
                _ratio(s.worst),
                _ratio(bar.worst if bar else None),
                s.worst_workload or "-",
                verdict,
            ]
        )
    return cells


def text_table(cells: Cells) -> str:
    """Lay cells out in columns for the terminal."""
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    numeric = [i for i, title in enumerate(cells[0]) if title not in _LEFT]
    lines = []
    for line in cells:
        parts = [
            cell.rjust(widths[i]) if i in numeric else cell.ljust(widths[i])
            for i, cell in enumerate(line)
        ]
        lines.append("  ".join(parts).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


_LEFT = frozenset({"analysis", "axis", "of", "policy", "same", "verdict", "with", "workload"})


def markdown_table(cells: Cells) -> str:
    """Lay cells out as a Markdown table."""
    rule = [":--" if title in _LEFT else "--:" for title in cells[0]]
    return "\n".join("| " + " | ".join(line) + " |" for line in [cells[0], rule, *cells[1:]])


def failures(rows: Sequence[Row]) -> list[str]:
    """Return a line for each workload and policy which failed, with the reasons."""
    return [
        f"{row.workload} under {row.policy}: {row.failed} of {row.runs} failed: {reason}"
        for row in rows
        for reason in row.errors
    ]


def all_summaries(rows: Sequence[Row], base: str = STOCK) -> list[Summary]:
    """Return the summaries of all policies but the base."""
    policies = [p for p in dict.fromkeys(row.policy for row in rows) if p != base]
    return [summary for policy in policies for summary in summarise(rows, policy)]


NOTE = (
    "x: ratio to stock in the same repetition, median over the repetitions. Geometric means are "
    "over the workloads that move more than 5 MiB under stock; a ratio below 0.01 counts as 0.01. "
    "moved: bytes written on connections between workers, everything on the wire, and those of "
    "results that one worker mapped out of another's shared memory. managed: peak "
    "of the managed bytes of all workers together. PSS: peak of the proportional set size of the "
    "worker processes together, sampled at 20 Hz. CPU s: of workers, scheduler, nannies and client "
    "together, without what the sampling takes."
)


FRISKY_NOTE = (
    "Frisky's bytes moved are those its workers report as received, before the compression that "
    "it applies on the wire. Its PSS is that of its worker processes. It reports neither managed "
    "bytes as a peak nor tasks sent."
)


def peer_cells(peers: Sequence[Row]) -> Cells:
    """Return the table of geometric means of the ratios to Frisky, its head first."""
    cells = [["policy", "axis", "workloads", "geomean x", "worst x", "of"]]
    for s in all_summaries(peers, FRISKY):
        if s.mean is not None:
            axis = _TITLES[s.axis].removesuffix(" MiB")
            worst = s.worst_workload or "-"
            line = [s.policy, axis, str(s.workloads), _ratio(s.mean), _ratio(s.worst), worst]
            cells.append(line)
    return cells


def render(rows: Sequence[Row], peers: Sequence[Row], table: Callable[[Cells], str]) -> str:
    """Return the tables, the failures and the note, laid out by ``table``.

    Parameters
    ----------
    rows : sequence of Row
        With ratios to stock.
    peers : sequence of Row
        With ratios to Frisky; shown if it ran.
    table : callable
        `text_table` or `markdown_table`.
    """
    parts = [table(row_cells(rows))]
    summaries = all_summaries(rows)
    if summaries:
        parts.append(table(summary_cells(summaries)))
    if any(row.policy == FRISKY for row in peers):
        parts += ["Ratios to Frisky:", table(peer_cells(peers)), FRISKY_NOTE]
    failed = failures(rows)
    if failed:
        parts.append("\n".join(f"- {line}" for line in failed))
    return "\n\n".join([*parts, NOTE])


def made_by(command: str) -> str:
    """Return the sentence that says what made a table."""
    made = ", ".join(f"{name} {number}" for name, number in versions().items())
    return f"Made by `{command}` on {os.cpu_count()} cores with {made}."


def markdown_page(rows: Sequence[Row], peers: Sequence[Row], command: str) -> str:
    """Return the tables as Markdown, with the command and the versions that made them."""
    return f"{made_by(command)}\n\n{render(rows, peers, markdown_table)}\n"


def _summary_json(summary: Summary) -> dict[str, Any]:
    return {**asdict(summary), "met": summary.verdict()}


def to_json(
    outcome: Outcome, rows: Sequence[Row], peers: Sequence[Row], command: str
) -> dict[str, Any]:
    """Return everything measured as a JSON-able dict."""
    frisky = any(row.policy == FRISKY for row in peers)
    return {
        "command": command,
        "cores": os.cpu_count(),
        "versions": versions(),
        "measurements": [m.to_json() for m in outcome.measurements],
        "rows": [{**asdict(row), "misses": row.misses()} for row in rows],
        "summaries": [_summary_json(s) for s in all_summaries(rows)],
        "against_frisky": [_summary_json(s) for s in all_summaries(peers, FRISKY)]
        if frisky
        else [],
        "plugin_reports": outcome.reports,
    }
