"""What a report is made of, gathered on the scheduler."""

from __future__ import annotations

import asyncio
from typing import Any

from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.metrics import time
from tornado.ioloop import PeriodicCallback

from dask_marsched.config import changed_options
from dask_marsched.core.series import Series

#: Graphs and workers that a report shows; of more than these the last, and the fullest.
MOST_GRAPHS = 12
MOST_WORKERS = 60
#: Cells of a plan's picture.
_MOST_CELLS = 1500
#: Milliseconds between two looks at the workers' memory. They tell it twice a second at most.
_EVERY = 500
_LOOKS = 240
#: How often a report asks for an estimate that is not ready, 0.05 s apart.
_PATIENCE = 100
#: Workers that are followed.
_MOST_FOLLOWED = 500


class ReportRecorder(SchedulerPlugin):
    """Follows a computation for a report while it is registered.

    Parameters
    ----------
    name
        Under which it is registered; every report has its own.
    client
        The client that reports. When it goes, so does the recorder.
    """

    def __init__(self, name: str, client: str) -> None:
        self.name = name
        self.client = client
        self._scheduler: Scheduler | None = None
        self._observer: Any = None
        self._before: dict[str, Any] = {}
        self._known: set[int] = set()
        self._began = 0.0
        self._workers: dict[str, Series] = {}
        self._ticking: PeriodicCallback | None = None

    async def start(self, scheduler: Scheduler) -> None:
        """Begin."""
        self._scheduler = scheduler
        self._began = time()
        self._observer = self._observing()
        if self._observer is not None:
            self._known = {graph["number"] for graph in self._observer.graphs()}
            self._before = _totals(self._observer)
        self._look()
        self._ticking = PeriodicCallback(self._look, _EVERY)
        self._ticking.start()

    @property
    def following(self) -> bool:
        """Whether it looks at the workers from time to time."""
        return self._ticking is not None and self._ticking.is_running()

    def stop(self) -> None:
        """Look no more."""
        if self._ticking is not None:
            self._ticking.stop()

    async def close(self) -> None:
        """Look no more: the scheduler closes."""
        self.stop()

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Leave with the client, should it go without ending its report."""
        if client == self.client and self.name in scheduler.plugins:
            self.stop()
            scheduler.remove_plugin(self.name)

    def _observing(self) -> Any:
        assert self._scheduler is not None
        plugin = self._scheduler.plugins.get("marsched")
        return getattr(plugin, "observer", None)

    def _look(self) -> None:
        """Note the memory that workers take; what they told last is here already."""
        assert self._scheduler is not None
        now = time()
        for ws in list(self._scheduler.workers.values()):
            series = self._workers.get(ws.address)
            if series is None:
                if len(self._workers) >= _MOST_FOLLOWED:
                    continue
                series = Series(("process", "disk"), _LOOKS, _EVERY / 2000)
                self._workers[ws.address] = series
            if series.due(now):
                disk = (ws.metrics.get("spilled_bytes") or {}).get("disk", 0)
                series.add(now, (ws.metrics.get("memory", 0), disk))

    async def told(self) -> dict[str, Any]:
        """Return everything that was found, as plain values for JSON."""
        assert self._scheduler is not None
        self._look()
        observer = self._observing()
        plugin: Any = self._scheduler.plugins.get("marsched")
        found: dict[str, Any] = {
            "began": self._began,
            "ended": time(),
            "scheduler": self._scheduler.address,
            "plugin": None if plugin is None else plugin.report(),
            "settings": None if plugin is None else _settings(plugin),
            "followed": {who: series.to_dict() for who, series in self._workers.items()},
            "observed": None,
        }
        if observer is None:
            return found
        # Another observer than at the beginning has counted from its own beginning.
        same = observer is self._observer
        graphs = [g for g in observer.graphs() if not same or g["number"] not in self._known]
        found["observed"] = {
            "graphs": [await _graph(observer, one) for one in graphs[-MOST_GRAPHS:]],
            "more_graphs": max(0, len(graphs) - MOST_GRAPHS),
            "memory": observer.memory(MOST_WORKERS),
            "before": self._before if same else {},
            "from_start": same,
            **_totals(observer),
        }
        return found


def _settings(plugin: Any) -> list[list[str]]:
    """Return key, value and default of the options that were set otherwise."""
    return [[key, str(now), str(usual)] for key, now, usual in changed_options(plugin.settings)]


def _totals(observer: Any) -> dict[str, Any]:
    """Return what counts from the observer's beginning on."""
    return {
        "transfers": observer.transfers(),
        "kernels": observer.kernels(),
        "faults": observer.faults(),
    }


async def _graph(observer: Any, graph: dict[str, Any]) -> dict[str, Any]:
    number = graph["number"]
    return {
        **graph,
        "plan": await observer.drawn(number, _MOST_CELLS),
        "over_time": observer.operand_counts(number),
        "estimate": await _estimate(observer, number),
    }


async def _estimate(observer: Any, graph: int) -> dict[str, Any]:
    """Return what stock Dask would have moved, estimated in a thread meanwhile."""
    for _ in range(_PATIENCE):
        found = observer.transfers(graph=graph)
        if found["estimate"] is not None or found["reason"] != "being estimated":
            break
        await asyncio.sleep(0.05)
    return {"estimate": found["estimate"], "reason": found["reason"]}
