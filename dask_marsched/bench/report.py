"""Formats a benchmark's outcome as tables and JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from dask_marsched.bench.metrics import AXES, Row, Summary, summarise
from dask_marsched.bench.runner import Outcome

MIB = 2**20
_TITLES = {
    "moved": "moved MiB",
    "managed": "managed MiB",
    "pss": "PSS MiB",
    "seconds": "seconds",
    "cpu": "CPU s",
    "scheduler_cpu": "scheduler CPU s",
    "sent": "tasks sent",
}
_SECONDS = ("seconds", "cpu", "scheduler_cpu")
#: Titles of columns whose cells are aligned to the left.
TEXTS = frozenset({"analysis", "axis", "of", "policy", "same", "verdict", "with", "workload"})
NOTE = (
    "x: ratio to stock in the same repetition, median over the repetitions. Geometric means are "
    "over the workloads that move more than 5 MiB under stock; a ratio below 0.01 counts as 0.01. "
    "moved: bytes written on connections between workers, and those of results that one worker "
    "mapped from another's shared memory. managed: peak of the managed bytes of all workers "
    "together. PSS: peak of the proportional set size of the worker processes together, sampled at "
    "20 Hz. CPU s: of workers, scheduler, nannies and client together, without the sampling. "
    "scheduler CPU s: of scheduler and client."
)
Cells = list[list[str]]


def facts(command: str) -> dict[str, Any]:
    """Return the command of a measurement, the machine's cores and the versions of packages."""
    versions = {"python": platform.python_version()}
    for name in ("dask-marsched", "dask", "distributed", "numpy", "xarray"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {"command": command, "cores": os.cpu_count(), "versions": versions}


def row_cells(rows: Sequence[Row]) -> Cells:
    """Return the table of workloads and policies, its head first."""
    titles = [title for axis in AXES for title in (_TITLES[axis], "x")]
    cells = [["workload", "policy", *titles, "same"]]
    for row in rows:
        line = [row.workload, row.policy]
        for axis in AXES:
            line += [_value(axis, row.medians[axis]), ratio_text(row.ratios[axis])]
        cells.append([*line, {True: "yes", False: "NO", None: "-"}[row.identical]])
    return cells


def _value(axis: str, value: float | None) -> str:
    if value is None:
        return "-"
    if "MiB" in _TITLES[axis]:
        return f"{value / MIB:.1f}" if value < 100 * MIB else f"{value / MIB:.0f}"
    return f"{value:.2f}" if axis in _SECONDS else f"{value:.0f}"


def ratio_text(value: float | None) -> str:
    """Return a ratio with two digits, a dash if it is unknown."""
    return "-" if value is None else f"{value:.2f}"


def summary_cells(summaries: Sequence[Summary]) -> Cells:
    """Return the table of geometric means, its head first."""
    cells = [["policy", "axis", "workloads", "geomean x", "worst x", "of"]]
    for s in summaries:
        axis = _TITLES[s.axis].removesuffix(" MiB")
        numbers = [str(s.workloads), ratio_text(s.mean), ratio_text(s.worst)]
        cells.append([s.policy, axis, *numbers, s.worst_workload])
    return cells


def failures(rows: Sequence[Row]) -> str:
    """Return a line for each workload and policy that failed, with the reasons."""
    return "\n".join(
        f"- {row.workload} under {row.policy}: {row.failed} of {row.runs} failed: {reason}"
        for row in rows
        for reason in row.errors
    )


def text_table(cells: Cells) -> str:
    """Lay cells out in columns for the terminal."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    texts = [title in TEXTS for title in cells[0]]
    lines = [
        "  ".join(
            cell.ljust(width) if text else cell.rjust(width)
            for cell, width, text in zip(line, widths, texts, strict=True)
        ).rstrip()
        for line in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def to_json(outcome: Outcome, rows: Sequence[Row]) -> dict[str, Any]:
    """Return everything measured as a JSON-able dict."""
    return {
        "measurements": [asdict(m) for m in outcome.measurements],
        "rows": [asdict(row) for row in rows],
        "summaries": [asdict(s) for s in summarise(rows)],
        "plugin_reports": outcome.reports,
    }
