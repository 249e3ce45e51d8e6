"""The pages: one for each pane, one with four of them, and a pane each for JupyterLab."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

PANES: tuple[type[Pane], ...] = (
    PlanPane,
    OperandsPane,
    MemoryPane,
    TransfersPane,
    KernelsPane,
    FaultsPane,
)
#: The page with four of them.
OVERVIEW = "mars"
_TEMPLATE = "simple.html"
#: Pixels of a row of the page with four of them.
_HEIGHT = 560


def add_panes(doc: Any, panes: list[Pane]) -> None:
    """Bring panes up to date now, and as long as the document is open."""
    for pane in panes:
        pane.update()
        add_periodic_callback(doc, pane, pane.every)
    plots = [plot for pane in panes for plot in pane.plots]
    follow_theme(doc, plots, [text for pane in panes for text in pane.texts])
    doc.theme = BOKEH_THEME


def page(pane_class: type[Pane]) -> Callable[[Any, dict[str, Any], Any], None]:
    """Return what makes the page of a pane, with the dashboard's own bar above it."""

    def make(scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
        pane = pane_class(scheduler)
        add_panes(doc, [pane])
        doc.add_root(pane.root)
        doc.title = f"Mars: {pane.name}"
        doc.template = env.get_template(_TEMPLATE)
        doc.template_variables.update(extra)

    return make


def individual(pane_class: type[Pane]) -> Callable[[Any, dict[str, Any], Any], None]:
    """Return what makes a pane alone."""

    def make(scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
        pane = pane_class(scheduler)
        add_panes(doc, [pane])
        doc.add_root(pane.root)
        doc.title = f"Mars: {pane.name}"

    return make


def overview(scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
    """Make the page with plan, operands, memory and transfers."""
    plan, operands, memory, transfers = (kind(scheduler) for kind in PANES[:4])
    add_panes(doc, [plan, operands, memory, transfers])
    for pane in (plan, operands, memory, transfers):
        # What a pane has no room for is scrolled to, and does not lie over the one below.
        pane.root.styles = {"overflow": "auto"}
        pane.root.min_width = 480
    upper, lower = (
        row(*(pane.root for pane in pair), sizing_mode="stretch_width", height=_HEIGHT)
        for pair in ((plan, operands), (memory, transfers))
    )
    doc.add_root(column(upper, lower, sizing_mode="stretch_width"))
    doc.title = "Mars"
    doc.template = env.get_template(_TEMPLATE)
    doc.template_variables.update(extra)


def all_pages() -> Mapping[str, Callable[[Any, dict[str, Any], Any], None]]:
    """Return what makes each page, by its path."""
    pages: dict[str, Callable[[Any, dict[str, Any], Any], None]] = {f"/{OVERVIEW}": overview}
    for pane_class in PANES:
        pages[f"/mars-{pane_class.name}"] = page(pane_class)
        pages[f"/individual-mars-{pane_class.name}"] = individual(pane_class)
    return pages
