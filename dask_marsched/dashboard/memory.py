"""Draws the page Mars: memory: used and promised memory of each worker, and its limits."""

from __future__ import annotations

from typing import Any

import numpy as np
from bokeh.layouts import column
from bokeh.models import ColumnDataSource, FixedTicker, HoverTool
from dask.utils import format_bytes

from dask_marsched.dashboard.pane import Pane, set_data, set_text
from dask_marsched.dashboard.theme import count_bytes, make_figure, make_legend, make_text
from dask_marsched.monitoring.html import element, table
from dask_marsched.monitoring.palette import BLUE, INK, MEMORY, ORANGE, PINK, RED
from dask_marsched.monitoring.tables import count, size

#: Upper bounds: workers with a bar, workers whose names are shown, and rows of the table.
_MOST_BARS, _MOST_NAMES, _MOST_ROWS = 200, 40, 50
_PARTS = ("private", "mapped", "shared", "other")
#: Lines over time, and lines across the bars: name, colour, dash.
_LINES = (
    ("process", BLUE, "solid"),
    ("used", ORANGE, "dashed"),
    ("disk", PINK, "dotted"),
    ("quota", RED, "dashed"),
    ("limit", INK, "solid"),
)
_MARKS = (("limit", INK, "solid"), ("pause", INK, "dotted"), ("quota", RED, "dashed"))
_BYTES = "0.0b"
#: Most characters of a worker's name beside its bar: longer ones leave no room for the bars.
_WIDEST = 24


class MemoryPane(Pane):
    """A bar for each worker with its limits, all workers over time, and a table of their quotas."""

    name = "memory"

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        self.source = ColumnDataSource(_bars_of([], None))
        self.bars = make_figure("Memory of each worker", "bytes", "worker", min_height=160)
        self.bars.y_range.flipped = True
        self.bars.x_range.start = 0
        self.bars.ygrid.visible = False
        count_bytes(self.bars.xaxis[0], ticks=3)
        self.ticker = self.bars.yaxis[0].ticker = FixedTicker(ticks=[])
        self._bars()
        self.totals = ColumnDataSource({"time": [], **{name: [] for name, _, _ in _LINES}})
        self.over_time = make_figure("All workers together", "seconds", "bytes", min_height=140)
        self.over_time.y_range.start = 0
        count_bytes(self.over_time.yaxis[0])
        self._lines()
        self.table = make_text()
        self.plots, self.texts = [self.bars, self.over_time], [self.table]
        self.arrange(column(self.bars, self.over_time, self.table, sizing_mode="stretch_both"))

    def _bars(self) -> None:
        bars, source = self.bars, self.source
        for part in _PARTS:
            bars.hbar(
                y="y", left=f"{part}_from", right=f"{part}_to", height=0.7, source=source,
                fill_color=MEMORY[part], line_color=None, legend_label=part,
            )  # fmt: skip
        whole = bars.hbar(
            y="y", left="used", right="promised_to", height=0.7, source=source, fill_color=None,
            line_color=ORANGE, hatch_pattern="right_diagonal_line", hatch_color=ORANGE,
            hatch_scale=7, legend_label="promised",
        )  # fmt: skip
        for name, colour, dash in _MARKS:
            bars.segment(
                x0=name, x1=name, y0="above", y1="below", source=source, line_color=colour,
                line_dash=dash, line_width=2, legend_label=name,
            )  # fmt: skip
        ground = bars.hbar(
            y="y", left=0, right="process", height=0.9, source=source, fill_alpha=0.0,
            line_alpha=0.0,
        )  # fmt: skip
        tips = [("worker", "@name"), ("address", "@address"), ("process", f"@process{{{_BYTES}}}")]
        tips += [(part, f"@{part}{{{_BYTES}}}") for part in (*_PARTS, "disk", "limit")]
        tips += [("quota", "@quota_text")]
        bars.add_tools(HoverTool(renderers=[ground, whole], tooltips=tips))
        make_legend(bars)

    def _lines(self) -> None:
        plot = self.over_time
        for name, colour, dash in _LINES:
            plot.line(
                x="time", y=name, source=self.totals, line_color=colour, line_dash=dash,
                line_width=2, legend_label=name,
            )  # fmt: skip
        make_legend(plot)

    def show(self, observer: Any) -> str | None:
        """Show the workers."""
        found = observer.memory(_MOST_BARS)
        rows = found["workers"]
        if not rows:
            return "There is no worker yet. Each that joins the scheduler gets a bar here."
        names = [row["name"] for row in rows]
        set_data(self.source, _bars_of(rows, found["thresholds"]["pause"]))
        self._name_bars(names if len(names) <= _MOST_NAMES else [])
        total = found["total"]
        time = np.asarray(total["time"], dtype=float)
        shown = {"time": time - time[0] if len(time) else time}
        for name in ("limit", "quota", "process", "used", "disk"):
            values = np.asarray(total[name], dtype=float)
            shown[name] = values if name in ("process", "disk") else _unless_zero(values)
        set_data(self.totals, shown)
        set_text(self.heading, _heading(found))
        set_text(self.table, _table(found))
        return None

    def _name_bars(self, names: list[str]) -> None:
        axis = self.bars.yaxis[0]
        overrides = dict(enumerate(map(_short, names)))
        if axis.major_label_overrides != overrides:
            self.ticker.ticks = list(range(len(names)))
            axis.major_label_overrides = overrides
            axis.axis_label = "worker" if names else "workers: point at a bar"


def _short(name: str) -> str:
    """Leave out the middle of a long name: workers of a cluster often differ in the end only."""
    half = _WIDEST // 2
    return name if len(name) <= _WIDEST else f"{name[: half - 1]}\u2026{name[-half:]}"


def _unless_zero(values: Any) -> Any:
    """Return values with NaN for 0, which means no limit."""
    return np.where(values > 0, values, np.nan)


def _bars_of(rows: list[dict[str, Any]], pause: float | None) -> dict[str, Any]:
    n = len(rows)

    def values(name: str) -> Any:
        return np.array([np.nan if row[name] is None else row[name] for row in rows], dtype=float)

    y = np.arange(n, dtype=float)
    data: dict[str, Any] = {"y": y, "above": y - 0.45, "below": y + 0.45}
    data["name"] = [row["name"] for row in rows]
    data["address"] = [row["worker"] for row in rows]
    edge = np.zeros(n)
    for part in _PARTS:
        data[part] = values(part)
        data[f"{part}_from"] = edge
        edge = edge + data[part]
        data[f"{part}_to"] = edge
    for name in ("process", "disk", "limit", "quota", "used", "promised", "queued"):
        data[name] = values(name)
    data["pause"] = data["limit"] * pause if pause else np.full(n, np.nan)
    data["promised_to"] = data["used"]
    data["used"] = data["used"] - data["promised"]
    data["quota_text"] = [
        "off"
        if row["quota"] is None
        else f"{format_bytes(row['used'])} used of {format_bytes(row['quota'])}, of these "
        f"{format_bytes(row['promised'])} promised; {format_bytes(row['queued'])} wait"
        for row in rows
    ]
    return data


def _heading(found: dict[str, Any]) -> str:
    rows = found["workers"]
    process = sum(row["process"] for row in rows)
    limit = sum(row["limit"] or 0 for row in rows)
    facts = [f" {format_bytes(process)} of {format_bytes(limit)} taken by {len(rows)} workers"]
    if found["more_workers"]:
        facts.append(f" (the fullest; {found['more_workers']} more are not shown)")
    if found["quota_on"]:
        total = {n: sum(row[n] or 0 for row in rows) for n in ("deferrals", "forced", "evictions")}
        facts.append(
            f"; {count(total['deferrals'])} operands deferred for lack of memory, "
            f"{count(total['forced'])} forced, {count(total['evictions'])} evictions"
        )
    else:
        facts.append("; no worker has a quota (marsched.quota.enabled; it needs a memory limit)")
    return element("div", element("b", "Memory:"), *facts)


def _table(found: dict[str, Any]) -> str:
    if not found["quota_on"]:
        return ""
    columns = ("used", "promised", "queued", "quota", "disk")
    rows = [
        (
            row["name"],
            *(size(row[name]) for name in columns),
            *("" if row[name] is None else row[name] for name in ("deferrals", "forced")),
        )
        for row in found["workers"][:_MOST_ROWS]
    ]
    return table(("worker", *columns, "deferrals", "forced"), rows, range(1, 8))
