"""Draws the page Mars: operands: counts by state over time, and causes of failures."""

from __future__ import annotations

from typing import Any

import numpy as np
from bokeh.layouts import column
from bokeh.models import ColumnDataSource, HoverTool

from dask_marsched.core.graph_record import NAMES
from dask_marsched.dashboard.pane import NO_GRAPH, GraphChoice, Pane, set_data, set_text
from dask_marsched.dashboard.theme import make_figure, make_legend, make_text
from dask_marsched.monitoring import tables
from dask_marsched.monitoring.html import element, joined
from dask_marsched.monitoring.palette import STATES
from dask_marsched.monitoring.tables import count

#: From the bottom of the chart up.
_ORDER = ("freed", "finished", "running", "ready", "unscheduled", "fatal", "cancelled")


class OperandsPane(Pane):
    """Counts by state of a graph, or of all operands, stacked over time."""

    name = "operands"

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        self.choice = GraphChoice(self.update, everything="all operands")
        self.source = ColumnDataSource(_areas({name: [] for name in ("time", *NAMES)}))
        self.plot = make_figure("Operands by state", "seconds", "operands")
        self.plot.y_range.start = 0
        below = "none"
        for state in _ORDER:
            colour, pattern = STATES[state]
            self.plot.varea(
                x="time", y1=below, y2=f"{state}_top", source=self.source, fill_color=colour,
                fill_alpha=0.85, hatch_pattern=pattern, hatch_color="black", hatch_alpha=0.6,
                hatch_scale=8, legend_label=state,
            )  # fmt: skip
            below = f"{state}_top"
        line = self.plot.line(x="time", y="none", source=self.source, line_alpha=0.0)
        tips = [("at", "@time{0.0} s"), *((s, f"@{s}{{0,0}}") for s in reversed(_ORDER))]
        self.plot.add_tools(HoverTool(renderers=[line], tooltips=tips, mode="vline"))
        make_legend(self.plot)
        self.plot.legend[0].items.reverse()
        self.causes = make_text()
        self.plots, self.texts = [self.plot], [self.causes]
        self.arrange(column(self.plot, self.causes, sizing_mode="stretch_both"), self.choice.select)

    def show(self, observer: Any) -> str | None:
        """Show the counts of the chosen graph, or of all."""
        graphs = observer.graphs()
        self.choice.offer(graphs)
        chosen = self.choice
        if not graphs and not chosen.everything:
            return NO_GRAPH
        number = chosen.number
        if number is None and not chosen.everything:
            number = graphs[-1]["number"]
        try:
            found = observer.operand_counts(number)
        except KeyError:
            return "This graph is not remembered any more: choose another."
        if not sum(found["counts"].values()):
            return "No operand has been submitted yet. " + NO_GRAPH
        set_data(self.source, _areas(found["series"]))
        counts = [f"{count(number)} {state}" for state, number in found["counts"].items() if number]
        what = "All operands" if number is None else f"Graph {number}"
        set_text(self.heading, element("div", element("b", f"{what}: "), ", ".join(counts)))
        set_text(self.causes, _causes(found["causes"]))
        return None


def _areas(series: dict[str, list[float]]) -> dict[str, Any]:
    """Return the counts, and the top of each state in the stack."""
    time = np.asarray(series["time"], dtype=float)
    start = time[0] if len(time) else 0.0
    top = np.zeros(len(time))
    data: dict[str, Any] = {"time": time - start, "none": top.copy()}
    for state in _ORDER:
        data[state] = np.asarray(series[state], dtype=float)
        top = top + data[state]
        data[f"{state}_top"] = top
    return data


def _causes(causes: list[dict[str, Any]]) -> str:
    if not causes:
        return element("p", "No operand has failed or was cancelled.")
    return joined([element("b", "Failed or cancelled, by cause"), tables.causes(causes)])
