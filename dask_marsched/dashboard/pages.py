"""Makes the pages: an overview of four panes, and each pane alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bokeh.layouts import column, row
from distributed.dashboard.components import add_periodic_callback
from distributed.dashboard.components.scheduler import BOKEH_THEME, env

from dask_marsched.dashboard.faults import FaultsPane
from dask_marsched.dashboard.kernels import KernelsPane
from dask_marsched.dashboard.memory import MemoryPane
from dask_marsched.dashboard.operands import OperandsPane
from dask_marsched.dashboard.pane import Pane
from dask_marsched.dashboard.plan import PlanPane
from dask_marsched.dashboard.theme import follow_theme
from dask_marsched.dashboard.transfers import TransfersPane
from dask_marsched.host.web.dashboard import Page

PANES: tuple[type[Pane], ...] = (
    PlanPane,
    OperandsPane,
    MemoryPane,
    TransfersPane,
    KernelsPane,
    FaultsPane,
)
#: Path of the page with four panes.
OVERVIEW = "mars"
#: Height of a row of that page, pixels.
_HEIGHT = 560


def add_panes(doc: Any, panes: list[Pane]) -> None:
    """Update panes now, and periodically while the document is open."""
    for pane in panes:
        pane.update()
        add_periodic_callback(doc, pane, pane.every)
    plots = [plot for pane in panes for plot in pane.plots]
    follow_theme(doc, plots, [text for pane in panes for text in pane.texts])
    doc.theme = BOKEH_THEME


def page(pane_class: type[Pane], with_bar: bool) -> Page:
    """Return a function that makes a pane's page, for JupyterLab without the navigation bar."""

    def make(scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
        pane = pane_class(scheduler)
        add_panes(doc, [pane])
        doc.add_root(pane.root)
        doc.title = f"Mars: {pane.name}"
        if with_bar:
            _add_bar(doc, extra)

    return make


def _add_bar(doc: Any, extra: dict[str, Any]) -> None:
    doc.template = env.get_template("simple.html")
    doc.template_variables.update(extra)


def overview(scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
    """Make the page with the panes of plan, operands, memory and transfers."""
    plan, operands, memory, transfers = (kind(scheduler) for kind in PANES[:4])
    add_panes(doc, [plan, operands, memory, transfers])
    for pane in (plan, operands, memory, transfers):
        # A pane that is too high scrolls, and does not cover the one below.
        pane.root.styles = {"overflow": "auto"}
        pane.root.min_width = 480
    upper, lower = (
        row(*(pane.root for pane in pair), sizing_mode="stretch_width", height=_HEIGHT)
        for pair in ((plan, operands), (memory, transfers))
    )
    doc.add_root(column(upper, lower, sizing_mode="stretch_width"))
    doc.title = "Mars"
    _add_bar(doc, extra)


def all_pages() -> Mapping[str, Page]:
    """Return the functions that make the pages, by path."""
    pages: dict[str, Page] = {f"/{OVERVIEW}": overview}
    for pane_class in PANES:
        pages[f"/mars-{pane_class.name}"] = page(pane_class, with_bar=True)
        pages[f"/individual-mars-{pane_class.name}"] = page(pane_class, with_bar=False)
    return pages
