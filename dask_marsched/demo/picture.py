"""Draws the demo's table: a panel for each quantity, stock's bar above the plugin's."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dask_marsched.bench.report import ratio_text
from dask_marsched.demo.comparison import QUANTITIES, Comparison, Quantity
from dask_marsched.monitoring.palette import BLUE, FAINT_INK, ORANGE

STOCK, OURS = ORANGE, BLUE
BAR = 0.38


def draw(
    path: Path, comparisons: Sequence[Comparison], sentences: Sequence[str], caption: str
) -> None:
    """Write the comparisons as a PNG, sentences in the sixth panel and a caption below."""
    figure = Figure(figsize=(12, 2.0 + 1.4 * len(comparisons)), layout="constrained")
    panels = figure.subplots(2, 3, sharey=True).flat
    for panel, quantity in zip(panels, QUANTITIES, strict=False):
        _draw_panel(panel, quantity, comparisons)
    panels[0].invert_yaxis()  # all panels share it
    last = panels[len(QUANTITIES)]
    last.set_axis_off()
    last.legend(*panels[0].get_legend_handles_labels(), loc="upper left", frameon=False)
    text = "\n\n".join(textwrap.fill(sentence, 42) for sentence in sentences)
    last.text(0.02, 0.62, text, transform=last.transAxes, va="top")
    same = all(comparison.same for comparison in comparisons)
    title = "Same programs, same results to the last bit" if same else "RESULTS DIFFER"
    figure.suptitle(title, x=0.01, ha="left", fontsize=17, fontweight="bold")
    figure.supxlabel(caption, x=0.01, ha="left", fontsize=9, color=FAINT_INK)
    figure.savefig(path, format="png", dpi=110)


def _draw_panel(panel: Any, quantity: Quantity, comparisons: Sequence[Comparison]) -> None:
    rows = np.arange(len(comparisons))
    stock = [c.stock[quantity.name] for c in comparisons]
    ours = [c.ours[quantity.name] for c in comparisons]
    ratios = [c.ratio(quantity.name) for c in comparisons]
    suffixes = ["" if ratio is None else f"  ({ratio_text(ratio)})" for ratio in ratios]
    for values, after, offset, colour, label in (
        (stock, [""] * len(rows), -BAR / 2, STOCK, "stock Dask"),
        (ours, suffixes, BAR / 2, OURS, "dask-marsched (ratio to stock)"),
    ):
        widths = [value or 0 for value in values]
        bars = panel.barh(rows + offset, widths, BAR * 0.94, color=colour, label=label)
        texts = [
            "not measured" if value is None else quantity.text(value) + more
            for value, more in zip(values, after, strict=True)
        ]
        panel.bar_label(bars, texts, padding=3)
    panel.margins(x=0.55)  # leaves room for the numbers
    panel.set_xlim(left=0)
    panel.set_xticks([])
    panel.set_yticks(rows, [textwrap.fill(c.title, 18) for c in comparisons])
    panel.set_title(quantity.title, loc="left")
    panel.spines[["top", "right", "bottom"]].set_visible(False)
