"""Draws the page Mars: plan: the units of a graph, the workers that run them, their progress."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from bokeh.layouts import column
from bokeh.models import ColumnDataSource, HoverTool

from dask_marsched.dashboard.pane import NO_GRAPH, GraphChoice, Pane, set_data, set_text
from dask_marsched.dashboard.theme import make_figure, make_text
from dask_marsched.monitoring.html import Markup, element, joined
from dask_marsched.monitoring.palette import NOBODY, STATES, colours
from dask_marsched.monitoring.tables import count

#: Upper bounds: cells, and workers in the legend.
_CELLS, _NAMED = 2000, 16
#: States whose counts the tooltip of a cell shows.
_COUNTED = ("unscheduled", "ready", "running", "finished", "freed", "fatal", "cancelled")


class PlanPane(Pane):
    """Shows cells of operands: depth in the graph from left to right, units from top to bottom.

    A cell is filled by the share that is done, in the colour of the worker that has most of them;
    running and queued operands are paler, failed and cancelled ones hatched.
    """

    name = "plan"

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        self.choice = GraphChoice(self.update)
        empty = {"cells": defaultdict(list), "workers": [], "depth": 0, "columns": 0}
        self.source = ColumnDataSource(_quads(empty, []))
        self.plot = make_figure(
            "Units of the plan, by worker",
            "depth: operands from a source",
            "units, in the order of the plan",
        )
        self.plot.y_range.flipped = True
        self.plot.xgrid.visible = self.plot.ygrid.visible = False
        self.plot.xaxis.ticker.min_interval = 1
        self.plot.yaxis.ticker = []  # a row may stand for several units
        box = {"top": "top", "bottom": "bottom", "source": self.source}
        whole = self.plot.quad(
            left="left", right="right", fill_color=NOBODY, fill_alpha=0.18,
            line_color=NOBODY, line_alpha=0.5, line_width=0.5, **box,
        )  # fmt: skip
        self.plot.quad(
            left="left", right="sent", fill_color="color", fill_alpha=0.4, line_color=None, **box
        )
        self.plot.quad(
            left="left", right="done", fill_color="color", fill_alpha=1.0, line_color=None, **box
        )
        for state in ("fatal", "cancelled"):
            colour, pattern = STATES[state]
            self.plot.quad(
                left=f"{state}_from", right=f"{state}_to", fill_color=colour, fill_alpha=0.6,
                hatch_pattern=pattern, hatch_color="black", hatch_scale=6, line_color="black",
                **box,
            )  # fmt: skip
        tips = [("worker", "@name (@share of those sent)"), ("operands", "@operands{0,0}")]
        tips += [(state, f"@{state}{{0,0}}") for state in _COUNTED]
        self.plot.add_tools(HoverTool(renderers=[whole], tooltips=tips))
        self.legend = make_text()
        self.plots, self.texts = [self.plot], [self.legend]
        self.arrange(column(self.legend, self.plot, sizing_mode="stretch_both"), self.choice.select)

    def show(self, observer: Any) -> str | None:
        """Draw the chosen graph."""
        graphs = observer.graphs()
        self.choice.offer(graphs)
        if not graphs:
            return NO_GRAPH
        try:
            plan = observer.plan(self.choice.number, _CELLS)
        except KeyError:
            return "This graph is not remembered any more: choose another."
        graph = next((g for g in reversed(graphs) if g["number"] == plan["graph"]), graphs[-1])
        set_text(self.heading, _heading(graph, plan))
        if not plan["ready"]:
            return f"The picture is being drawn: {plan['share']:.0%} of the operands."
        palette = colours(len(plan["workers"]))
        cells = plan["cells"]
        set_text(self.legend, _legend(cells, plan["workers"], palette))
        set_data(self.source, _quads(plan, palette))
        return None


def _quads(plan: dict[str, Any], palette: list[str]) -> dict[str, Any]:
    """Return the rectangles of cells, as wide as the depths that they cover."""
    cells, workers = plan["cells"], plan["workers"]
    depths = plan["depth"] / max(1, plan["columns"])
    arrays = {name: np.asarray(cells[name], dtype=float) for name in ("column", "row", "operands")}
    counts = {state: np.asarray(cells[state], dtype=float) for state in _COUNTED}
    total = np.maximum(arrays["operands"], 1)
    left, top = arrays["column"] * depths, arrays["row"] - 0.45
    width = 0.9 * depths
    # From left to right: done, failed, cancelled, on a worker, waiting.
    done = left + width * (counts["finished"] + counts["freed"]) / total
    fatal = done + width * counts["fatal"] / total
    cancelled = fatal + width * counts["cancelled"] / total
    sent = cancelled + width * np.minimum(counts["running"] + counts["ready"], total) / total
    return {
        "left": left,
        "right": left + width,
        "top": top,
        "bottom": top + 0.9,
        "done": done,
        "sent": np.where(np.asarray(cells["worker"]) >= 0, sent, left),
        "fatal_from": np.where(counts["fatal"] > 0, done, np.nan),
        "fatal_to": np.where(counts["fatal"] > 0, fatal, np.nan),
        "cancelled_from": np.where(counts["cancelled"] > 0, fatal, np.nan),
        "cancelled_to": np.where(counts["cancelled"] > 0, cancelled, np.nan),
        "color": [palette[w] if w >= 0 else NOBODY for w in cells["worker"]],
        "name": [workers[w] if w >= 0 else "none yet" for w in cells["worker"]],
        "share": [f"{share:.0%}" for share in cells["worker_share"]],
        "operands": arrays["operands"],
        **counts,
    }


def _heading(graph: dict[str, Any], plan: dict[str, Any]) -> Markup:
    counts = graph["counts"]
    done = counts["finished"] + counts["freed"] + counts["cached"]
    facts = [
        f" {count(graph['operands'])} operands in {count(graph['units'])} units, "
        f"{done / max(1, graph['operands']):.0%} done, {count(counts['running'])} running"
    ]
    facts += [f", {count(counts[s])} {s}" for s in ("fatal", "cancelled") if counts[s]]
    if graph["replanned"]:
        facts.append(f"; planned again {graph['replanned']} times")
    if plan.get("aggregated"):
        facts.append("; a cell stands for several operands")
    return element("div", element("b", f"Graph {graph['number']}:"), *facts)


def _legend(cells: dict[str, Any], workers: list[str], palette: list[str]) -> Markup:
    used = sorted({w for w in cells["worker"] if w >= 0})
    parts = [_swatch(palette[w], workers[w]) for w in used[:_NAMED]]
    if len(used) > _NAMED:
        parts.append(Markup(f"and {len(used) - _NAMED} more workers: point at a cell"))
    parts.append(_swatch(NOBODY, "not sent yet", 0.4))
    return element("div", joined(parts))


def _swatch(colour: str, name: str, opacity: float = 1.0) -> Markup:
    style = (
        f"display:inline-block;width:11px;height:11px;margin:0 4px 0 0;background:{colour};"
        f"opacity:{opacity};vertical-align:-1px"
    )
    space = {"style": "margin-right:12px;white-space:nowrap;display:inline-block"}
    box = element("span", "", attributes={"style": style})
    return element("span", box, name, attributes=space)
