"""Draws a simulation's timeline as a figure: memory and activity over virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from dask.utils import format_bytes

from dask_marsched.installation import how_to_install
from dask_marsched.monitoring.palette import DARK_INK, FAINT_INK, RED, SET, YELLOW
from dask_marsched.report.charts import byte_scale
from dask_marsched.simulation.report.timeline import (
    Floats,
    Timeline,
    busy,
    fault_name,
    highest,
    level_at,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = (*SET[:6], YELLOW)
_REST = "#BBBBBB"
_BINS = 600
#: Most workers that are drawn with a line each; of more, bands are drawn.
_MOST_LINES = len(_COLOURS)
#: Rows of the panel of activity; with more workers several share one.
_MOST_ROWS = 200
_GROUPS = 4
#: Most characters of a group's name in the legend.
_LABEL = 28
#: A memory limit more than this many times above the data is written instead of drawn.
_LIMIT_IN_SIGHT = 3


def plot_timeline(
    timeline: Timeline,
    title: str,
    makespan: float,
    workers: Sequence[int],
    threads: int,
    memory_limit: int,
) -> Figure:
    """Draw a timeline; see `SimulationReport.plot`."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"plot needs matplotlib, which is not installed: run {how_to_install('simulate')}",
            name=error.name,
        ) from error
    figure = Figure(figsize=(11, 9), layout="constrained")
    total, each, active = figure.subplots(3, 1, sharex=True)
    edges = np.linspace(0.0, makespan, _BINS + 1)
    faults = np.array([time for time, _, _ in timeline.faults])
    _draw_total(total, timeline, edges)
    _draw_each(each, timeline, edges, workers, memory_limit)
    image = _draw_active(active, timeline, edges, np.array(workers), threads)
    bar = figure.colorbar(image, cax=active.inset_axes((1.01, 0, 0.015, 1)))
    bar.set_label("share of threads busy", fontsize=9, color=DARK_INK)
    for panel in (total, each, active):
        panel.vlines(faults, 0, 1, transform=panel.get_xaxis_transform(), color=RED, linestyle=":")
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=9, colors=FAINT_INK)
    for time, what, worker in timeline.faults:
        total.annotate(
            fault_name(what, worker), (time, 1), xycoords=("data", "axes fraction"), xytext=(2, -2),
            textcoords="offset points", fontsize=8, color=RED, rotation=90, va="top",
        )  # fmt: skip
    active.set_xlabel("virtual time (s)", color=DARK_INK)
    active.set_xlim(0, makespan)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, color=DARK_INK)
    return figure


def _title(panel: Any, text: str, unit: str) -> None:
    panel.set_title(text, loc="left", fontsize=11, color=DARK_INK)
    panel.set_ylabel(unit, color=DARK_INK)


def _shortened(name: str) -> str:
    return name if len(name) <= _LABEL else name[: _LABEL - 3] + "..."


def _legend(panel: Any) -> None:
    panel.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=9)


def _draw_total(panel: Any, timeline: Timeline, edges: Floats) -> None:
    rows, held = timeline.changes.rows, timeline.memory.rows["bytes"]
    peak = int(held.max())
    scale, unit = byte_scale(peak)
    positions = highest(rows["time"], held, edges)
    rest = level_at(held, positions)
    names, of_key = timeline.groups
    stack, labels = [], []
    for group in timeline.peak_groups(_GROUPS):
        own = of_key[rows["key"]] == names.index(group.group)
        part = level_at(np.cumsum(np.where(own, rows["bytes"], 0)), positions)
        rest = rest - part
        stack.append(part / scale)
        labels.append(_shortened(group.group))
    panel.stackplot(
        edges[:-1], *stack, rest / scale, step="post", labels=[*labels, "other groups"],
        colors=[*_COLOURS[: len(stack)], _REST],
    )  # fmt: skip
    _legend(panel)
    _title(panel, f"Results in memory on the cluster: at most {format_bytes(peak)}", unit)


def _draw_each(
    panel: Any, timeline: Timeline, edges: Floats, workers: Sequence[int], limit: int
) -> None:
    levels = np.array(
        [
            level_at(held := np.cumsum(rows["bytes"]), highest(rows["time"], held, edges))
            for _, rows in timeline.changes_by_worker(workers)
        ]
    )
    largest = int(levels.max())
    drawn = limit <= _LIMIT_IN_SIGHT * largest
    scale, unit = byte_scale(max(largest, limit if drawn else 0))
    levels = levels / scale
    if len(workers) <= _MOST_LINES:
        for worker, level, colour in zip(workers, levels, _COLOURS, strict=False):
            panel.step(edges[:-1], level, where="post", color=colour, label=f"worker {worker}")
    else:
        colour = _COLOURS[0]
        for low, high, alpha, label in ((0, 100, 0.2, "all"), (10, 90, 0.35, "80 % of them")):
            bounds = np.percentile(levels, (low, high), axis=0)
            panel.fill_between(
                edges[:-1], *bounds, step="post", color=colour, alpha=alpha, lw=0, label=label
            )
        middle = np.median(levels, axis=0)
        panel.step(edges[:-1], middle, where="post", color=colour, label="median worker")
    title = f"Results in memory of each worker: at most {format_bytes(largest)}"
    if drawn:
        panel.axhline(limit / scale, color=RED, linestyle="--", label="memory limit")
    else:
        title += f" (limit {format_bytes(limit)})"
    panel.set_ylim(0, None)
    _legend(panel)
    _title(panel, title, unit)


def _draw_active(panel: Any, timeline: Timeline, edges: Floats, numbers: Any, threads: int) -> Any:
    per_row = -(-len(numbers) // _MOST_ROWS)
    rows = timeline.tasks.rows
    row_of = np.searchsorted(numbers, rows["worker"]) // per_row
    shares = []
    for row, begin in enumerate(range(0, len(numbers), per_row)):
        own = rows[row_of == row]
        slots = threads * len(numbers[begin : begin + per_row])
        shares.append(busy(own["start"], own["stop"], edges) / slots)
    image = panel.imshow(
        shares, aspect="auto", origin="lower", interpolation="nearest", cmap="cividis",
        vmin=0, vmax=1, extent=(0, edges[-1], -0.5, len(shares) * per_row - 0.5),
    )  # fmt: skip
    for worker, start, stop in timeline.pauses:
        panel.hlines(np.searchsorted(numbers, worker), start, stop, color=RED, linewidth=3)
    shared = f" ({per_row} to a row)" if per_row > 1 else ""
    paused = ", red while paused" if len(timeline.pauses) else ""
    _title(panel, f"Activity of the workers{shared}{paused}", "worker")
    panel.yaxis.get_major_locator().set_params(integer=True)
    return image
