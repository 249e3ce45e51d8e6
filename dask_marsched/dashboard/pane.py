"""Defines the base of all panes, which queries the observer and says why a pane shows nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from bokeh.core.properties import without_property_validation
from bokeh.layouts import column
from bokeh.models.widgets import Select

from dask_marsched.dashboard.theme import make_text
from dask_marsched.monitoring.html import element

#: Graphs that can be chosen.
_GRAPHS = 20
LAST = "last graph"

NO_GRAPH = (
    "No graph has been planned yet. Compute a dask collection of two tasks or more, such as "
    "da.random.random((4000, 4000)).sum().compute(), and it appears here."
)


class Pane:
    """A pane of the dashboard: figures and text that are updated periodically.

    A subclass puts its models into `plots` and `texts`, calls `arrange`, and implements `show`.
    """

    #: In addresses and in JupyterLab's list.
    name: str = ""
    #: Milliseconds between two updates.
    every: int = 500

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.plots: list[Any] = []
        self.texts: list[Any] = []
        self.heading = make_text()
        self.note = make_text("14px")
        self.note.visible = False
        self.root: Any = None
        self._body: Any = None

    def arrange(self, body: Any, *above: Any) -> None:
        """Lay the pane out: controls, heading, note, and the body."""
        self._body = body
        self.texts += [self.heading, self.note]
        self.root = column(
            *above, self.heading, self.note, body, sizing_mode="stretch_both", name=self.name
        )

    @without_property_validation  # type: ignore[untyped-decorator]  # Bokeh's
    def update(self) -> None:
        """Update the models. An exception is shown, and counted like one of a hook."""
        observer = getattr(self.scheduler.plugins.get("marsched"), "observer", None)
        if observer is None:
            self.say("dask_marsched is not in force on this scheduler any more.")
            return
        if observer.failure is not None:
            self.say(f"The observer has stopped: {observer.failure}")
            return
        try:
            reason = self.show(observer)
        except Exception as error:
            observer.counters.caught(f"page {self.name}", error)
            reason = f"This pane failed: {type(error).__name__}: {error}"
        self.say(reason)

    def show(self, observer: Any) -> str | None:
        """Update the models; return why there is nothing to show, or None."""
        raise NotImplementedError

    def end(self) -> None:
        """Say that the pane is no longer updated."""
        self.say("The plugin was removed from this scheduler, or registered anew. Reload the page.")

    def say(self, reason: str | None) -> None:
        """Show why there is nothing to show, or, for None, the body."""
        hidden = reason is not None
        if reason is not None:
            set_text(self.note, element("p", reason))
        if hidden is not self.note.visible:
            self.note.visible = hidden
            self._body.visible = not hidden
            self.heading.visible = not hidden


class GraphChoice:
    """The choice of a graph, by default the last; ``everything`` labels that of all together."""

    def __init__(self, chosen: Callable[[], None], everything: str | None = None) -> None:
        self._everything = everything
        self._first: list[Any] = [LAST] if everything is None else [everything, LAST]
        first = self._first
        self.select = Select(value=first[0], options=first, width=260, title="Graph")
        self.select.on_change("value", lambda attr, old, new: chosen())

    def offer(self, graphs: list[dict[str, Any]]) -> None:
        """Update the choices."""
        options: list[Any] = [*self._first]
        options += [
            f"{g['number']}: {g['operands']:,} operands" for g in graphs[: -_GRAPHS - 1 : -1]
        ]
        if options != self.select.options:
            self.select.options = options

    @property
    def everything(self) -> bool:
        """Whether all graphs together are chosen."""
        return self._everything is not None and self.select.value == self._everything

    @property
    def number(self) -> int | None:
        """The number of the chosen graph, None for the last one."""
        head = str(self.select.value).partition(":")[0]
        return int(head) if head.lstrip("-").isdigit() else None


def set_text(div: Any, text: str) -> None:
    """Set a text if it has changed: every assignment is sent to the browser."""
    if div.text != text:
        div.text = text


def set_data(source: Any, data: dict[str, Any]) -> None:
    """Set the columns of a source if they have changed: every assignment is sent to the browser."""
    before = source.data
    if before.keys() != data.keys() or not all(_same(before[k], v) for k, v in data.items()):
        source.data = data


def _same(before: Any, now: Any) -> bool:
    if isinstance(now, np.ndarray):
        floats = now.dtype.kind == "f"
        return isinstance(before, np.ndarray) and np.array_equal(before, now, equal_nan=floats)
    return isinstance(before, list) and before == now
