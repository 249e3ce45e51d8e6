"""A simulation's report as HTML for notebooks: one table and one curve, no scripts."""

from __future__ import annotations

import html as escaping
from typing import TYPE_CHECKING

import numpy as np
from dask.utils import format_bytes

from dask_marsched.simulation.report.comparison import setting
from dask_marsched.simulation.report.levels import highest, level_at

if TYPE_CHECKING:
    from dask_marsched.simulation.report.report import SimulationReport

_WIDTH, _HEIGHT, _BINS = 480, 80, 160
#: Readable on white and on black; everything else takes the page's own colour.
_COLOUR = "#3C8DC5"


def html(report: SimulationReport) -> str:
    """Return the report as HTML that looks right in light and dark themes."""
    cells = "".join(
        f'<tr><th style="text-align:left">{escaping.escape(name)}</th>'
        f'<td style="text-align:left">{escaping.escape(value)}</td></tr>'
        for name, value in _facts(report)
    )
    title = escaping.escape(f"{setting(report)}, simulated: {report.policy}")
    curve = _curve(report) if report.timeline else ""
    return f"<div><strong>{title}</strong><table>{cells}</table>{curve}</div>"


def _facts(report: SimulationReport) -> list[tuple[str, str]]:
    fullest = max(report.peak_memory_per_worker.values(), default=0)
    share = fullest / report.memory_limit
    facts = [
        ("makespan", f"{report.makespan:.3f} s, threads {report.utilisation:.0%} busy"),
        ("moved", f"{format_bytes(report.bytes_moved)} in {report.transfers:,} transfers"),
        ("peak memory, cluster", format_bytes(report.peak_memory)),
        ("peak memory, fullest worker", f"{format_bytes(fullest)}, {share:.0%} of its limit"),
    ]
    if report.timeline:
        groups = (
            f"{group.group} ({group.count:,}, {format_bytes(group.nbytes)})"
            for group in report.peak_groups()
        )
        facts.append(("held at the peak", ", ".join(groups)))
    if report.bytes_spilled:
        facts.append(("spilled to disk", format_bytes(report.bytes_spilled)))
    if report.seconds_paused:
        facts.append(("workers paused", f"{report.seconds_paused:.3f} s"))
    if report.timeline.faults:
        faults = (f"{what} {worker} at {time:g} s" for time, what, worker in report.timeline.faults)
        facts.append(("faults", ", ".join(faults)))
    facts.append(("tasks recomputed", f"{report.tasks_recomputed:,}"))
    facts += [("not simulated", text) for text in report.not_simulated]
    return facts


def _curve(report: SimulationReport) -> str:
    """Return the memory of the cluster over virtual time as an SVG."""
    memory = report.timeline.memory.rows
    edges = np.linspace(0.0, report.makespan, _BINS + 1)
    held = level_at(memory["bytes"], highest(memory["time"], memory["bytes"], edges))
    step, scale = _WIDTH / _BINS, (_HEIGHT - 2) / max(report.peak_memory, 1)
    points = " ".join(
        f"{index * step:.0f},{_HEIGHT - level * scale:.1f} "
        f"{(index + 1) * step:.0f},{_HEIGHT - level * scale:.1f}"
        for index, level in enumerate(held.tolist())
    )
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT + 16}" role="img" '
        'aria-label="memory of the cluster over virtual time">'
        f'<polygon points="0,{_HEIGHT} {points} {_WIDTH},{_HEIGHT}" fill="{_COLOUR}"/>'
        f'<text x="0" y="{_HEIGHT + 13}" font-size="11" fill="currentColor">'
        f"memory of the cluster, 0 to {report.makespan:.3g} s</text></svg>"
    )
