"""Draws the page Mars: transfers: bytes moved between workers, and an estimate for stock Dask."""

from __future__ import annotations

from typing import Any

import numpy as np
from bokeh.layouts import column, row
from bokeh.models import ColumnDataSource, FactorRange, HoverTool, LinearColorMapper
from bokeh.models.annotations import ColorBar
from bokeh.palettes import Cividis256
from dask.utils import format_bytes

from dask_marsched.dashboard.pane import GraphChoice, Pane, set_data, set_text
from dask_marsched.dashboard.theme import count_bytes, make_figure
from dask_marsched.monitoring.html import element
from dask_marsched.monitoring.palette import BLUE, INK, ORANGE, SKY
from dask_marsched.monitoring.tables import count

#: With more workers than this, rows and columns are hosts.
_MOST_WORKERS = 32
_BYTES = "0.0b"
#: Bars of the comparison: key of the estimate, label, colour.
_BARS = (
    ("moved", "moved so far", BLUE),
    ("plan", "this plan, by forecast", SKY),
    ("stock", "stock Dask, by forecast", ORANGE),
)


class TransfersPane(Pane):
    """A matrix of senders and receivers, bytes over time, and the estimate for stock placement."""

    name = "transfers"

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        self.choice = GraphChoice(self.update)
        self._matrix()
        self._comparison()
        self.line = ColumnDataSource({"time": [], "moved": []})
        self.over_time = make_figure("Over time", "seconds", "bytes", min_height=140)
        count_bytes(self.over_time.yaxis[0])
        self.over_time.y_range.start = 0
        self.over_time.line(x="time", y="moved", source=self.line, line_width=2, line_color=BLUE)
        self.plots = [self.matrix, self.bars, self.over_time]
        right = column(self.bars, self.over_time, sizing_mode="stretch_both")
        self.arrange(row(self.matrix, right, sizing_mode="stretch_both"), self.choice.select)

    def _matrix(self) -> None:
        names = ("sender", "receiver", "bytes")
        self.source = ColumnDataSource({name: [] for name in names})
        self.matrix = make_figure(
            "Bytes moved", "to", "from", x_range=FactorRange(), y_range=FactorRange(),
            min_width=260, min_height=260,
        )  # fmt: skip
        self.matrix.grid.grid_line_color = None
        self.matrix.xaxis.major_label_orientation = 0.9
        self.mapper = LinearColorMapper(palette=Cividis256, low=0, high=1)
        cells = self.matrix.rect(
            x="receiver", y="sender", width=0.96, height=0.96, source=self.source,
            fill_color={"field": "bytes", "transform": self.mapper}, line_color=None,
        )  # fmt: skip
        tips = [("from", "@sender"), ("to", "@receiver"), ("moved", f"@bytes{{{_BYTES}}}")]
        self.matrix.add_tools(HoverTool(renderers=[cells], tooltips=tips))
        scale = ColorBar(
            color_mapper=self.mapper, width=12, padding=4, background_fill_color=None,
            major_label_text_color=INK,
        )  # fmt: skip
        count_bytes(scale)
        self.matrix.add_layout(scale, "right")

    def _comparison(self) -> None:
        names = [text for _, text, _ in _BARS]
        self.compared = ColumnDataSource(
            {"name": names, "bytes": [0.0] * 3, "color": [c for _, _, c in _BARS], "text": [""] * 3}
        )
        self.bars = make_figure(
            "Of one graph", "bytes", "", y_range=FactorRange(factors=names[::-1]), min_height=140,
            tools="save",
        )  # fmt: skip
        self.bars.x_range.start = 0
        self.bars.ygrid.visible = False
        count_bytes(self.bars.xaxis[0], ticks=3)
        self.bars.hbar(
            y="name", right="bytes", height=0.7, fill_color="color", line_color=None,
            source=self.compared,
        )  # fmt: skip
        self.bars.add_tools(HoverTool(tooltips=[("@name", "@text")]))

    def show(self, observer: Any) -> str | None:
        """Show the transfers."""
        graphs = observer.graphs()
        self.choice.offer(graphs)
        found = observer.transfers(_MOST_WORKERS, self.choice.number)
        estimate, matrix = found["estimate"], found["matrix"]
        set_text(self.heading, _heading(found))
        self.bars.visible = estimate is not None
        if estimate is not None:
            values = [estimate[key] for key, _, _ in _BARS]
            self.compared.patch(
                {
                    "bytes": list(enumerate(values)),
                    "text": [(i, format_bytes(int(v))) for i, v in enumerate(values)],
                }
            )
            self.bars.title.text = f"Of graph {estimate['graph']}"
        self._show_matrix(matrix)
        time = np.asarray(found["series"]["time"], dtype=float)
        moved = np.asarray(found["series"]["moved"], dtype=float)
        set_data(self.line, {"time": time - time[0], "moved": moved})
        if not matrix["names"] and estimate is None:
            return (
                "No result has been moved between workers yet. Bytes appear here when a worker "
                "fetches results of another; those of P2P shuffles are not counted."
            )
        return None

    def _show_matrix(self, matrix: dict[str, Any]) -> None:
        names = [_short(name) for name in matrix["names"]]
        self.matrix.visible = bool(names)
        if list(self.matrix.x_range.factors) != names:
            self.matrix.x_range.factors = names
            self.matrix.y_range.factors = names[::-1]
        self.matrix.title.text = f"Between {matrix['between']}"
        values = np.asarray(matrix["bytes"], dtype=float).ravel()
        moved = np.flatnonzero(values)
        n = max(1, len(names))
        data = {
            "sender": [names[i // n] for i in moved.tolist()],
            "receiver": [names[i % n] for i in moved.tolist()],
            "bytes": values[moved],
        }
        set_data(self.source, data)
        high = float(values.max()) if len(values) else 0.0
        if self.mapper.high != (high or 1.0):
            self.mapper.high = high or 1.0


def _short(name: str) -> str:
    return name.rpartition("://")[2]


def _heading(found: dict[str, Any]) -> str:
    facts = [f" {format_bytes(int(found['moved']))} between workers in all"]
    if found["by_handle"] is None:
        facts.append(", all by connection: no worker shares memory (marsched.store.shared)")
    else:
        handle, comm = (format_bytes(found[name]) for name in ("by_handle", "by_comm"))
        facts.append(f": {handle} by handle (mapped on the same host), {comm} by connection")
    if found["unsure"]:
        facts.append(f"; of {format_bytes(int(found['unsure']))} the sender is one of several")
    estimate = found["estimate"]
    if estimate is None:
        facts.append(f". No estimate for stock Dask: {found['reason']}.")
    else:
        part = ""
        if estimate["operands"] < estimate["of"]:
            part = f" of its first {count(estimate['operands'])} operands, extrapolated"
        facts.append(
            f". Estimates are forecasts of graph {estimate['graph']}{part}, "
            f"{estimate['known_sizes']:.0%} of its sizes known beforehand. Compare the plan's with "
            "the bytes moved to see how far to trust stock's."
        )
    return element("div", element("b", "Transfers:"), *facts)
