"""Measures the cost of the dashboard's pages and of the observer for the scheduler's event loop.

The scheduler is the real one, driven by the digital twin: a graph of as many operands as asked for
on a hundred workers, stopped again and again in the middle of its run. What is told is processor
time: nothing here waits for anything, so that on a machine with nothing else to do it is the time
for which the event loop is held up.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bokeh.document import Document
from bokeh.protocol import Protocol

from benchmarks.scheduler.planning_processes import program, steps_for
from dask_marsched.config import Settings
from dask_marsched.dashboard.pages import PANES, add_panes
from dask_marsched.dashboard.pane import Pane
from dask_marsched.monitoring.observer import Observer
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from dask_marsched.simulation import simulate
from dask_marsched.worker.heartbeat_metrics import METRIC

WORKERS = 100
BAR_MILLISECONDS = 50.0
#: Looks at all pages in one run: the first after a part of the operands, then every so many.
_LOOKS, _FIRST, _EVERY = 30, 1 / 20, 1000
#: Operands laid out in one go, as the observer does.
_SLICE = 10_000
_MIB = 2**20

#: What each simulated worker tells: all parts are on.
_FIGURES = {
    "quota": {
        "limit": 12 * 2**30, "used": 5 * 2**30, "promised": 2**30, "queued": 2**28,
        "deferrals": 12, "forced": 1, "evictions": 40,
    },
    "store": {"memory": 2**30, "spilled": 2**28, "disk": 2**28},
    "shared": {
        "published": 2**29, "mapped": 2**28, "by_handle": 400, "bytes_by_handle": 400 * _MIB,
        "by_comm": 100, "bytes_by_comm": 100 * _MIB, "adopted": 3,
    },
    "interrupts": {"interrupted": 2},
    "kernels": {
        "saved": 12.5, "runs": 900, "fused": 800, "compiled": 1.5,
        "expressions": [
            [f"sum((a + {i}.0) * b, axis=(0,))", "float64, float64", "llvm", 200, 3.0, 0.4, 0]
            for i in range(4)
        ],
    },
}  # fmt: skip


@dataclass
class PageCost:
    """Milliseconds of the event loop for one update of a page.

    Attributes
    ----------
    updates, sent
        To bring its models up to date; to write what changed as a message to a browser.
    kilobytes
        Size of that message.
    """

    page: str
    updates: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    kilobytes: list[float] = field(default_factory=list)

    def totals(self) -> list[float]:
        """Return the sums of both for each update."""
        return [a + b for a, b in zip(self.updates, self.sent, strict=True)]


class _OpenPage:
    """A pane in a document, with what a browser would be sent."""

    def __init__(self, kind: type[Pane], scheduler: Any) -> None:
        self.pane = kind(scheduler)
        self.cost = PageCost(self.pane.name)
        self.events: list[Any] = []
        self.document = Document()
        self.document.add_root(self.pane.root)
        add_panes(self.document, [self.pane])
        self.document.on_change(self.events.append)

    def look(self) -> None:
        self.events.clear()
        start = time.thread_time()
        self.pane.update()
        updated = time.thread_time()
        size = 0
        if self.events:
            message = Protocol().create("PATCH-DOC", self.events)
            size = len(message.content_json) + sum(len(b.data) for b in message.buffers)
        self.cost.updates.append(1e3 * (updated - start))
        self.cost.sent.append(1e3 * (time.thread_time() - updated))
        self.cost.kilobytes.append(size / 1e3)
        if "This pane failed" in self.pane.note.text:
            raise RuntimeError(self.pane.note.text)


class _Enough(BaseException):
    """Ends a simulation from within a hook: Dask catches whatever else a hook raises."""


class _Looking(MarsSchedulerPlugin):
    """Looks at all pages again and again while a graph runs."""

    def __init__(self, operands: int, **options: Any) -> None:
        super().__init__(**options)
        self.pages: list[_OpenPage] = []
        self.slices: list[float] = []
        self.operands = 0
        self._every = max(1, min(_EVERY, operands // (2 * _LOOKS)))
        self._next = max(1, int(_FIRST * operands))
        self._finished = self._looks = 0

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Take note of a result; look at the pages after each so many of them."""
        super().transition(key, start, finish, *args, **kwargs)
        if start == "processing" and finish == "memory":
            self._finished += 1
            if self._finished == self._next and self.observer is not None:
                self._next += self._every
                self._look(self.observer)
                self._looks += 1
                if self._looks == _LOOKS:
                    raise _Enough

    def _look(self, observer: Observer) -> None:
        for ws in observer.scheduler.workers.values():
            ws.metrics[METRIC] = _FIGURES
        if not self.pages:
            self.operands = observer.graphs()[-1]["operands"]
            self._draw(observer)
            self.pages = [_OpenPage(kind, observer.scheduler) for kind in PANES]
        for page in self.pages:
            page.look()

    def _draw(self, observer: Observer) -> None:
        """Have the picture laid out, each step a turn of the event loop of its own."""
        layout = observer.record(None).layout(2000)
        done = False
        while not done:
            start = time.thread_time()
            done = layout.advance(_SLICE)
            self.slices.append(1e3 * (time.thread_time() - start))


def page_costs(operands: int) -> tuple[int, list[PageCost], list[float]]:
    """Return how many operands there were, what each page cost, and each step of the drawing.

    Parameters
    ----------
    operands
        Of the graph, about.
    """
    plugin = _Looking(operands)
    graph = list(program(steps_for(operands)))
    with contextlib.suppress(_Enough):
        simulate(graph, workers=WORKERS, threads=1, policy=plugin, isolated=False)
    return plugin.operands, [page.cost for page in plugin.pages], plugin.slices


class _Timed(MarsSchedulerPlugin):
    """Counts the processor time that its scheduler takes for graphs and messages."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seconds = 0.0

    async def start(self, scheduler: Any) -> None:
        """Wrap what a simulated scheduler is asked to do."""
        await super().start(scheduler)
        for name in ("submit", "receive", "heartbeat_worker"):
            setattr(scheduler, name, self._counted(getattr(scheduler, name)))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - start

        return counted


#: Hooks of the observer.
_HOOKS = ("planned", "planned_again", "arrived", "moved", "fetched", "worker_left", "sample")


class _Shared(_Timed):
    """Counts, too, what of this its observer takes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.observing = 0.0
        self.calls = 0

    async def start(self, scheduler: Any) -> None:
        """Wrap the observer's hooks, too."""
        await super().start(scheduler)
        for name in _HOOKS:
            setattr(self.observer, name, self.watched(getattr(self.observer, name)))

    def watched(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Return a hook that counts its time."""

        def watched(*args: Any) -> Any:
            start = time.thread_time()
            try:
                return hook(*args)
            finally:
                self.observing += time.thread_time() - start
                self.calls += 1

        return watched


def share(operands: int) -> float:
    """Return the observer's share of the scheduler's processor time, from 0 to 1.

    Both are taken in the same run, so that other work on the machine slows down both alike. What
    it takes to take the time is taken off; it is measured beside.

    Parameters
    ----------
    operands
        Of the graph, about.
    """
    graph = list(program(steps_for(operands)))
    plugin = _Shared(settings=Settings(observer_enabled=True))
    simulate(graph, workers=WORKERS, threads=1, policy=plugin, isolated=False)
    idle = _Shared()
    nothing = idle.watched(lambda *args: None)
    start = time.thread_time()
    for _ in range(plugin.calls):
        nothing(1, 2, 3, 4)
    around = time.thread_time() - start
    observing = plugin.observing - idle.observing
    return observing / (plugin.seconds - around)


def cost_cells(costs: list[PageCost], slices: list[float]) -> list[list[str]]:
    """Return the table of the pages, its head first."""
    head = ["page", "update ms", "message ms", "both, most ms", "message kB", "verdict"]
    table = [head]
    for cost in costs:
        most = max(cost.totals())
        table.append(
            [
                cost.page,
                f"{_median(cost.updates):.1f}",
                f"{_median(cost.sent):.1f}",
                f"{most:.1f}",
                f"{_median(cost.kilobytes):.0f}",
                "met" if most <= BAR_MILLISECONDS else "not met",
            ]
        )
    most = max(slices)
    verdict = "met" if most <= BAR_MILLISECONDS else "not met"
    table.append(["drawing, a step", f"{_median(slices):.1f}", "-", f"{most:.1f}", "-", verdict])
    return table


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
