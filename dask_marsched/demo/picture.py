"""The demo's table as a picture: a panel for each quantity, stock's bar above the plugin's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dask_marsched.demo.comparison import Comparison, Quantity, known_quantities
from dask_marsched.demo.table import ratio_text

# Two colours of Okabe and Ito's palette, apart also in grey and for the colour-blind.
STOCK, MARSCHED = "#E69F00", "#0072B2"
INK, FAINT = "#222222", "#777777"
BAR = 0.36
PANEL_WIDTH = 1.5
"""Width of a panel, in longest bars: the numbers stand behind the bars."""


def draw(path: Path, comparisons: Sequence[Comparison], caption: str) -> None:
    """Write the comparison as a PNG.

    Parameters
    ----------
    path : pathlib.Path
        File to write; its directory must exist.
    comparisons : sequence of Comparison
        One for each analysis, shown from above.
    caption : str
        Line below the panels: what was run, and where.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    figure = Figure(figsize=(10, 1.9 + 1.5 * len(comparisons)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2, sharey=True).flat
    quantities = known_quantities(comparisons)
    for panel, quantity in zip(panels, quantities, strict=False):
        _draw_panel(panel, quantity, comparisons)
    for panel in panels[len(quantities) :]:
        panel.set_axis_off()
    bars = panels[0].get_legend_handles_labels()
    figure.legend(*bars, loc="outside upper right", ncols=2, frameon=False, fontsize=11)
    equal = all(comparison.equal for comparison in comparisons)
    title = "Same code, same results" if equal else "RESULTS DIFFER"
    figure.suptitle(title, x=0.01, ha="left", fontsize=14, color=INK)
    figure.supxlabel(caption, x=0.01, ha="left", fontsize=9, color=FAINT)
    figure.savefig(path, format="png", dpi=150, facecolor="white")


def _draw_panel(panel: Any, quantity: Quantity, comparisons: Sequence[Comparison]) -> None:
    rows = range(len(comparisons))
    stock = [
        getattr(comparison.stock, quantity.name) / quantity.scale for comparison in comparisons
    ]
    ours = [
        getattr(comparison.marsched, quantity.name) / quantity.scale for comparison in comparisons
    ]
    for values, offset, colour, label in (
        (stock, -BAR / 2, STOCK, "stock Dask"),
        (ours, BAR / 2, MARSCHED, "dask-marsched"),
    ):
        panel.barh([row + offset for row in rows], values, BAR, color=colour, label=label)
    longest = max(*stock, *ours) or 1
    for row, comparison in zip(rows, comparisons, strict=True):
        ratio = comparison.ratio(quantity.name)
        times = "" if ratio is None else f"  ({ratio_text(ratio)} of stock)"
        for value, offset, suffix in ((stock[row], -BAR / 2, ""), (ours[row], BAR / 2, times)):
            number = quantity.text(value * quantity.scale) + suffix
            panel.text(
                value + 0.012 * longest, row + offset, number, va="center", fontsize=9.5, color=INK
            )
    panel.set_xlim(0, PANEL_WIDTH * longest)
    panel.set_xticks([tick for tick in MaxNLocator(5).tick_values(0, longest) if tick <= longest])
    panel.spines["bottom"].set_bounds(0, longest)
    panel.set_yticks(rows, [comparison.title for comparison in comparisons], fontsize=10.5)
    if not panel.yaxis_inverted():
        panel.invert_yaxis()
    panel.set_title(f"{quantity.title} ({quantity.unit})", loc="left", fontsize=11, color=INK)
    panel.tick_params(axis="y", length=0)
    panel.tick_params(axis="x", labelsize=9, colors=FAINT)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.spines["bottom"].set_color(FAINT)
