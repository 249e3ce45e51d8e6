"""Renders a simulation's report as HTML for notebooks: one table and one curve, no scripts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from dask.utils import format_bytes

from dask_marsched.monitoring.html import Markup, element, table
from dask_marsched.simulation.report.timeline import Timeline, fault_name, highest, level_at

_WIDTH, _HEIGHT, _BINS = 480, 80, 160
#: Readable on white and on black; everything else takes the page's own colour.
_COLOUR = "#3C8DC5"


def report_html(
    title: str, facts: Sequence[tuple[str, str]], timeline: Timeline, makespan: float
) -> str:
    """Return a table of facts and the curve of memory, for light and dark themes."""
    rows = table((), [*facts, *_timeline_facts(timeline)])
    curve = Markup(_memory_curve(timeline, makespan) if timeline else "")
    return element("div", element("strong", title), rows, curve)


def _timeline_facts(timeline: Timeline) -> list[tuple[str, str]]:
    facts = []
    if timeline:
        groups = (
            f"{group.group} ({group.count:,}, {format_bytes(group.nbytes)})"
            for group in timeline.peak_groups(3)
        )
        facts.append(("held at the peak", ", ".join(groups)))
    if timeline.faults:
        faults = (
            f"{fault_name(what, worker)} at {time:g} s" for time, what, worker in timeline.faults
        )
        facts.append(("faults", ", ".join(faults)))
    return facts


def _memory_curve(timeline: Timeline, makespan: float) -> str:
    memory = timeline.memory.rows
    edges = np.linspace(0.0, makespan, _BINS + 1)
    held = level_at(memory["bytes"], highest(memory["time"], memory["bytes"], edges))
    step, scale = _WIDTH / _BINS, (_HEIGHT - 2) / max(int(held.max()), 1)
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
        f"memory of the cluster, 0 to {makespan:.3g} s</text></svg>"
    )
