"""Draws the demo's table: a panel for each quantity, stock's bar above the plugin's."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from dask_marsched.bench.report import ratio_text
from dask_marsched.demo.comparison import QUANTITIES, Comparison, Quantity
from dask_marsched.monitoring.palette import BLUE, DARK_INK, FAINT_INK, ORANGE

STOCK, OURS = ORANGE, BLUE
INK, FAINT = DARK_INK, FAINT_INK
BAR = 0.38
PANEL_WIDTH = 1.55
"""Width of a panel in longest bars, which leaves room for the numbers."""


def draw(
    path: Path, comparisons: Sequence[Comparison], sentences: Sequence[str], caption: str
) -> None:
    """Write the comparisons as a PNG, sentences in the sixth panel and a caption below."""
    spaces = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, wspace=0.03, hspace=0.06)
    figure = Figure(figsize=(12, 2.0 + 1.4 * len(comparisons)), layout=spaces)
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 3, sharey=True).flat
    for panel, quantity in zip(panels, QUANTITIES, strict=False):
        _draw_panel(panel, quantity, comparisons)
    _write(panels[len(QUANTITIES)], sentences, panels[0].get_legend_handles_labels())
    same = all(comparison.same for comparison in comparisons)
    title = "Same programs, same results to the last bit" if same else "RESULTS DIFFER"
    figure.suptitle(title, x=0.01, ha="left", fontsize=17, fontweight="bold", color=INK)
    figure.supxlabel(caption, x=0.01, ha="left", fontsize=9, color=FAINT)
    figure.savefig(path, format="png", dpi=110, facecolor="white")


def _draw_panel(panel: Any, quantity: Quantity, comparisons: Sequence[Comparison]) -> None:
    sides = (
        ("stock", -BAR / 2, STOCK, "stock Dask"),
        ("ours", BAR / 2, OURS, "dask-marsched (ratio to stock)"),
    )
    known = [v for c in comparisons for v in (c.stock[quantity.name], c.ours[quantity.name]) if v]
    longest = max(known, default=1)
    for side, offset, colour, label in sides:
        for row, comparison in enumerate(comparisons):
            value = getattr(comparison, side)[quantity.name]
            at = row + offset
            panel.barh(at, value or 0, BAR * 0.94, color=colour, label=None if row else label)
            ratio = comparison.ratio(quantity.name)
            suffix = "" if side == "stock" or ratio is None else f"  ({ratio_text(ratio)})"
            text = "not measured" if value is None else quantity.text(value) + suffix
            faint = value is None or (quantity.name == "again" and not value)
            panel.text(
                (value or 0) + 0.02 * longest,
                at,
                text,
                va="center",
                fontsize=10,
                color=FAINT if faint else INK,
            )
    panel.set_xlim(0, PANEL_WIDTH * longest)
    panel.set_xticks([])
    titles = [textwrap.fill(comparison.title, 18) for comparison in comparisons]
    panel.set_yticks(range(len(comparisons)), titles, fontsize=11, color=INK)
    if not panel.yaxis_inverted():
        panel.invert_yaxis()
    panel.set_title(quantity.title, loc="left", fontsize=12, color=INK)
    panel.tick_params(axis="y", length=0)
    panel.spines[["top", "right", "bottom"]].set_visible(False)
    panel.spines["left"].set_color(FAINT)


def _write(panel: Any, sentences: Sequence[str], legend: Any) -> None:
    panel.set_axis_off()
    panel.legend(*legend, loc="upper left", frameon=False, fontsize=13, borderaxespad=0)
    text = "\n\n".join(textwrap.fill(sentence, 42) for sentence in sentences)
    panel.text(
        0.02, 0.62, text, transform=panel.transAxes, va="top", fontsize=11.5, color=INK,
        linespacing=1.35,
    )  # fmt: skip
