"""Gathers the figures of a report on the scheduler."""

from __future__ import annotations

import asyncio
from typing import Any

from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.metrics import time
from tornado.ioloop import PeriodicCallback

from dask_marsched.config import changed_options
from dask_marsched.core.series import Series

#: Upper bounds on a report: the last graphs, and the fullest workers.
MOST_GRAPHS = 12
MOST_WORKERS = 60
_MOST_CELLS = 1500
#: Milliseconds between two samples of the workers' memory, which heartbeats update.
_EVERY = 500
_SAMPLES = 240
#: Number of polls for an estimate that is not ready, 0.05 s apart.
_POLLS = 100
#: Workers whose memory is sampled.
_MOST_FOLLOWED = 500


class ReportRecorder(SchedulerPlugin):
    """Records a computation for a report, until it is removed or its client leaves."""

    def __init__(self, name: str, client: str) -> None:
        self.name = name
        self.client = client
        self._workers: dict[str, Series] = {}

    async def start(self, scheduler: Scheduler) -> None:
        """Begin to record."""
        self._scheduler = scheduler
        self._began = time()
        self._observer = observer = self._observing()
        self._known = set() if observer is None else {one["number"] for one in observer.graphs()}
        self._before = {} if observer is None else _totals(observer)
        self._sample()
        self._ticking = PeriodicCallback(self._sample, _EVERY)
        self._ticking.start()

    def stop(self) -> None:
        """Stop sampling."""
        self._ticking.stop()

    async def close(self) -> None:
        """Stop when the scheduler closes."""
        self.stop()

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Remove this if the client leaves without ending its report."""
        if client == self.client and self.name in scheduler.plugins:
            self.stop()
            scheduler.remove_plugin(self.name)

    def _observing(self) -> Any:
        return getattr(self._scheduler.plugins.get("marsched"), "observer", None)

    def _sample(self) -> None:
        now = time()
        for ws in list(self._scheduler.workers.values()):
            series = self._workers.get(ws.address)
            if series is None:
                if len(self._workers) >= _MOST_FOLLOWED:
                    continue
                series = Series(("process", "disk"), _SAMPLES, _EVERY / 2000)
                self._workers[ws.address] = series
            if series.due(now):
                disk = (ws.metrics.get("spilled_bytes") or {}).get("disk", 0)
                series.add(now, (ws.metrics.get("memory", 0), disk))

    async def result(self) -> dict[str, Any]:
        """Return all figures as plain values for JSON."""
        self._sample()
        observer = self._observing()
        plugin: Any = self._scheduler.plugins.get("marsched")
        found: dict[str, Any] = {
            "began": self._began,
            "ended": time(),
            "scheduler": self._scheduler.address,
            "plugin": None if plugin is None else plugin.report(),
            "settings": None
            if plugin is None
            else [list(map(str, one)) for one in changed_options(plugin.settings)],
            "followed": {who: series.to_dict() for who, series in self._workers.items()},
            "observed": None,
        }
        if observer is None:
            return found
        # A new observer has counted from its own start only.
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


def _totals(observer: Any) -> dict[str, Any]:
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
    """Return the estimate of stock Dask's transfers, which a thread computes."""
    for _ in range(_POLLS):
        found = observer.transfers(graph=graph)
        if found["estimate"] is not None or found["reason"] != "being estimated":
            break
        await asyncio.sleep(0.05)
    return {"estimate": found["estimate"], "reason": found["reason"]}
