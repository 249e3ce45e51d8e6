"""A simulation's report as a figure: memory and activity over virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from dask.utils import format_bytes
from numpy.typing import NDArray

from dask_marsched.monitoring.palette import DARK_INK, FAINT_INK, RED, SET, YELLOW
from dask_marsched.simulation.report.levels import busy, highest, level_at
from dask_marsched.simulation.report.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dask_marsched.simulation.report.report import SimulationReport

_COLOURS = (*SET[:6], YELLOW)
_INK, _FAINT, _ALARM = DARK_INK, FAINT_INK, RED
_REST = "#BBBBBB"
_BINS = 600
#: Up to so many workers each has its own line; above, there are bands.
_MOST_LINES = len(_COLOURS)
#: Rows of the panel of activity; with more workers several share one.
_MOST_ROWS = 200
_GROUPS = 4
#: Most characters of a group's name in the legend.
_LABEL = 28
#: A limit that is farther above the data than this is written, not drawn.
_LIMIT_IN_SIGHT = 3


def plot(report: SimulationReport) -> Figure:
    """Draw a report; see `SimulationReport.plot`."""
    timeline = report.kept_timeline("plot")
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "plot needs matplotlib, which is not installed: pip install 'dask-marsched[simulate]'",
            name=error.name,
        ) from error
    figure = Figure(figsize=(11, 9), layout="constrained")
    total, each, active = figure.subplots(3, 1, sharex=True)
    edges = np.linspace(0.0, report.makespan, _BINS + 1)
    faults = np.array([time for time, _, _ in timeline.faults])
    _draw_total(total, report, timeline, edges)
    _draw_each(each, report, timeline, edges)
    image = _draw_active(active, report, timeline, edges)
    bar = figure.colorbar(image, cax=active.inset_axes((1.01, 0, 0.015, 1)))
    bar.set_label("share of threads busy", fontsize=9, color=_INK)
    for panel in (total, each, active):
        panel.vlines(
            faults, 0, 1, transform=panel.get_xaxis_transform(), color=_ALARM, linestyle=":"
        )
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=9, colors=_FAINT)
    for time, what, worker in timeline.faults:
        total.annotate(
            f"{what} {worker}", (time, 1), xycoords=("data", "axes fraction"), xytext=(2, -2),
            textcoords="offset points", fontsize=8, color=_ALARM, rotation=90, va="top",
        )  # fmt: skip
    active.set_xlabel("virtual time (s)", color=_INK)
    active.set_xlim(0, report.makespan)
    figure.suptitle(
        f"{report.policy}: {report.tasks:,} tasks on {report.workers:,} workers, "
        f"{report.makespan:.3g} s, {format_bytes(report.bytes_moved)} moved, "
        f"{report.utilisation:.0%} busy, {report.tasks_recomputed:,} recomputed",
        x=0.01, ha="left", fontsize=12, color=_INK,
    )  # fmt: skip
    return figure


def _title(panel: Any, text: str, unit: str) -> None:
    panel.set_title(text, loc="left", fontsize=11, color=_INK)
    panel.set_ylabel(unit, color=_INK)


def _shortened(name: str) -> str:
    return name if len(name) <= _LABEL else name[: _LABEL - 3] + "..."


def _legend(panel: Any) -> None:
    panel.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=9)


def _unit(nbytes: float) -> tuple[str, float]:
    for name, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size:
            return name, float(size)
    return "bytes", 1.0


def _draw_total(
    panel: Any, report: SimulationReport, timeline: Timeline, edges: NDArray[np.float64]
) -> None:
    unit, scale = _unit(report.peak_memory)
    rows, held = timeline.changes.rows, timeline.memory.rows["bytes"]
    positions = highest(rows["time"], held, edges)
    rest = level_at(held, positions)
    names, of_key = timeline.groups
    stack, labels = [], []
    for group in report.peak_groups(_GROUPS):
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
    _title(
        panel, f"Results in memory on the cluster: at most {format_bytes(report.peak_memory)}", unit
    )


def _draw_each(
    panel: Any, report: SimulationReport, timeline: Timeline, edges: NDArray[np.float64]
) -> None:
    peaks = report.peak_memory_per_worker
    largest, limit = max(peaks.values()), report.memory_limit
    drawn = limit <= _LIMIT_IN_SIGHT * largest
    unit, scale = _unit(max(largest, limit if drawn else 0))
    levels = np.array(
        [
            level_at(held := np.cumsum(rows["bytes"]), highest(rows["time"], held, edges))
            for _, rows in timeline.changes_by_worker(list(peaks))
        ]
    )
    levels = levels / scale
    if len(peaks) <= _MOST_LINES:
        for worker, level, colour in zip(peaks, levels, _COLOURS, strict=False):
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
        panel.axhline(limit / scale, color=_ALARM, linestyle="--", label="memory limit")
    else:
        title += f" (limit {format_bytes(limit)})"
    panel.set_ylim(0, None)
    _legend(panel)
    _title(panel, title, unit)


def _draw_active(
    panel: Any, report: SimulationReport, timeline: Timeline, edges: NDArray[np.float64]
) -> Any:
    numbers = np.array(list(report.peak_memory_per_worker))
    per_row = -(-len(numbers) // _MOST_ROWS)
    rows = timeline.tasks.rows
    row_of = np.searchsorted(numbers, rows["worker"]) // per_row
    shares = []
    for row, begin in enumerate(range(0, len(numbers), per_row)):
        own = rows[row_of == row]
        threads = report.threads * len(numbers[begin : begin + per_row])
        shares.append(busy(own["start"], own["stop"], edges) / threads)
    image = panel.imshow(
        shares, aspect="auto", origin="lower", interpolation="nearest", cmap="cividis",
        vmin=0, vmax=1, extent=(0, report.makespan, -0.5, len(shares) * per_row - 0.5),
    )  # fmt: skip
    for worker, start, stop in timeline.pauses:
        panel.hlines(np.searchsorted(numbers, worker), start, stop, color=_ALARM, linewidth=3)
    shared = f" ({per_row} to a row)" if per_row > 1 else ""
    paused = ", red while paused" if len(timeline.pauses) else ""
    _title(panel, f"Activity of the workers{shared}{paused}", "worker")
    panel.yaxis.get_major_locator().set_params(integer=True)
    return image
