"""Draws groups of horizontal bars, and a table below them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from bokeh.layouts import column
from bokeh.models import ColumnDataSource, Dodge, FactorRange, HoverTool

from dask_marsched.dashboard.pane import Pane
from dask_marsched.dashboard.theme import make_figure, make_legend, make_text

#: Pixels of a figure of bars for title, axis and legend.
_HEAD = 140


class BarsPane(Pane):
    """Draws a group of bars for each label; a subclass fills `source` and `table`."""

    every = 1000
    title: ClassVar[str]
    across: ClassVar[str]
    down: ClassVar[str] = ""
    #: Column, legend, colour, height, and offset from the middle; a group has height 1.
    bars: ClassVar[Sequence[tuple[str, str, str, float, float]]]
    more: ClassVar[Sequence[str]]  #: Columns of `source` that only the tooltip shows.
    tips: ClassVar[Sequence[tuple[str, str]]]
    pixels: ClassVar[int]  #: Height of a group.

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        names = ("label", *self.more, *(bar[0] for bar in self.bars))
        self.source = ColumnDataSource({name: [] for name in names})
        self.plot = make_figure(
            self.title, self.across, self.down, y_range=FactorRange(), height=_HEAD,
            sizing_mode="stretch_width",
        )  # fmt: skip
        self.plot.ygrid.visible = False
        for name, text, colour, height, offset in self.bars:
            place = {"field": "label", "transform": Dodge(value=offset, range=self.plot.y_range)}
            self.plot.hbar(
                y=place, right=name, height=height, source=self.source, fill_color=colour,
                line_color=None, legend_label=text,
            )  # fmt: skip
        self.plot.add_tools(HoverTool(tooltips=list(self.tips)))
        make_legend(self.plot, "below", orientation="horizontal")
        self.table = make_text()
        self.plots, self.texts = [self.plot], [self.table]
        self.arrange(column(self.plot, self.table, sizing_mode="stretch_both"))

    def fit(self, labels: Sequence[str]) -> None:
        """Name the groups, from the top down, and make the figure as high as they need."""
        factors = list(labels)[::-1]
        if list(self.plot.y_range.factors) != factors:
            self.plot.y_range.factors = factors
            self.plot.height = _HEAD + self.pixels * len(factors)
