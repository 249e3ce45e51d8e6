"""Answers the questions of dashboard, JSON API and reports about a scheduler: `Observer`.

If a hook fails, it stops observing (`Observer.failure` tells why) and the scheduler goes on.
Pictures of plans and estimates of stock Dask's transfers are made on request only.
"""

from __future__ import annotations

import asyncio
from typing import Any

from dask_marsched.core.graph_record import (
    CANCELLED,
    FATAL,
    MOST_WORKERS,
    NAMES,
    NO_WORKER,
    Causes,
    GraphRecord,
    counts_by_state,
    split,
)
from dask_marsched.core.plan_layout import PlanLayout
from dask_marsched.monitoring.observer_hooks import OperandTracker
from dask_marsched.monitoring.tracked_graphs import SHIFT

#: Operands laid out in one step, a few milliseconds.
_STEP = 10_000


class Observer(OperandTracker):
    """Returns what `OperandTracker` has recorded of one scheduler.

    Answers are plain values for JSON, bounded in size, that belong to the caller. Times are seconds
    of the scheduler's clock (as of `time.time`), sizes bytes. Graphs are given by number; `plan`
    and `operand_counts` raise KeyError for unknown ones.
    """

    def graphs(self) -> list[dict[str, Any]]:
        """Return the planned graphs that are remembered, the oldest first; 100 at most.

        ``number`` is as in `dask_marsched.operands`, -1 for tasks that existed before the plugin.
        ``initial`` counts operands in units, ``moved`` bytes of results between workers;
        ``finished`` is None while the graph runs.
        """
        self._update()
        return [
            {
                "number": record.number,
                "planned": record.planned,
                "finished": record.finished,
                "done": not record.left,
                "operands": record.operands,
                "units": record.units()[0],
                "initial": record.units()[1],
                "replanned": record.replanned,
                "policies": dict(self._policies),
                "counts": counts_by_state(record.counts, record.running),
                "moved": record.moved,
            }
            for record in self._records.values()
        ]

    def plan(self, graph: int | None = None, most: int = 2000) -> dict[str, Any]:
        """Return the picture of a graph's plan, by default the last, in `most` cells at most.

        While a large graph is being laid out ``ready`` is False and ``share`` of the work is done:
        ask again, or await `drawn`. The picture has ``columns`` and ``rows``; ``cells`` holds lists
        of equal length: ``column`` (depth, from 0), ``row`` (position of the unit, from 0 at the
        top), ``operands`` in total and by state, ``worker`` (index of the one that got most
        operands, -1 for none yet) and ``worker_share`` of the operands that were sent.
        """
        self._update()
        record = self.record(graph)
        layout = record.layout(most)
        if not layout.done:
            self._lay_out(layout)
        names = list(self._worker_names)
        if len(names) >= MOST_WORKERS:
            names[MOST_WORKERS - 1 :] = ["others"]
        return {
            "graph": record.number,
            "operands": record.operands,
            "units": record.units()[0],
            "ready": layout.done,
            "share": layout.share,
            "columns": layout.columns,
            "depth": layout.depth,
            "rows": layout.rows,
            "aggregated": len(layout.column) < record.operands,
            "workers": names,
            "cells": self._cells(record, layout) if layout.done else {},
        }

    async def drawn(self, graph: int | None = None, most: int = 2000) -> dict[str, Any]:
        """Return what `plan` returns once it is ready."""
        while not (found := self.plan(graph, most))["ready"]:
            await asyncio.sleep(0)
        return found

    def _lay_out(self, layout: PlanLayout) -> None:
        """Lay out a picture in steps, between which the event loop can run other callbacks."""
        if layout.advance(_STEP) or layout.is_continued:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            while not layout.advance(_STEP):
                pass
        else:
            layout.is_continued = True
            loop.call_soon(self._continue, layout, loop)

    def _continue(self, layout: PlanLayout, loop: asyncio.AbstractEventLoop) -> None:
        if not layout.advance(_STEP):
            loop.call_soon(self._continue, layout, loop)

    def _cells(self, record: GraphRecord, layout: PlanLayout) -> dict[str, list[Any]]:
        by_code, worker, share = record.cells(layout)
        running = [0] * len(layout.column)
        for ws in self.scheduler.workers.values():
            for ts in ws.executing:
                at = self._at.get(ts.key, -1)
                if ts.processing_on is ws and self._records.get(at >> SHIFT) is record:
                    running[int(layout.cell_of[at & ((1 << SHIFT) - 1)])] += 1
        by_state = map(split, by_code.tolist(), running)
        counts = zip(*by_state, strict=True) if running else [()] * len(NAMES)
        return {
            "column": layout.column.tolist(),
            "row": layout.row.tolist(),
            "operands": by_code.sum(1).tolist(),
            "worker": [-1 if w == NO_WORKER else w for w in worker.tolist()],
            "worker_share": share.tolist(),
            **{name: list(of) for name, of in zip(NAMES, counts, strict=True)},
        }

    def operand_counts(self, graph: int | None = None) -> dict[str, Any]:
        """Return the numbers of operands by state, now and in at most 240 points of time.

        Without a graph, all operands since the plugin was registered count. ``causes`` of fatal and
        cancelled operands come with the most frequent first; their ``operand`` is the operation
        that failed first or was cancelled.
        """
        now = self._update()
        if graph is None:
            counts, running, series = self._totals(), self._running, self._series
            causes = Causes.joined(
                [self._causes, *(record.causes for record in self._records.values())]
            )
            end = now
        else:
            record = self.record(graph)
            counts, running, series = record.counts, record.running, record.series
            causes, end = record.causes, record.finished or now
        over_time = series.to_dict()
        for name, value in zip(("time", *NAMES), (end, *split(counts, running)), strict=True):
            over_time[name].append(value)
        return {
            "counts": counts_by_state(counts, running),
            "series": over_time,
            "causes": causes.to_list(),
        }

    def memory(self, most: int = 200) -> dict[str, Any]:
        """Return the memory of the `most` fullest workers, bytes, as of their last heartbeats.

        ``process`` is all memory of a worker: ``private`` results, ``mapped`` from others,
        ``shared`` with others, and ``other``. Figures of the quota are None if it is off,
        ``thresholds`` shares of the limit.
        """
        self._update()
        return self._workers.memory(most)

    def transfers(self, most: int = 32, graph: int | None = None) -> dict[str, Any]:
        """Return the bytes of results moved between workers since the plugin was registered.

        The scheduler counts what workers report as fetched, without P2P shuffles; ``by_handle`` and
        ``by_comm`` are counted by the workers that share memory. ``unsure`` bytes could have come
        from several workers, each of which counts a part. The ``matrix`` has a row for each sender;
        with more than `most` workers it is between hosts, and the rest is summed as ``others``.
        ``estimate`` forecasts for a graph (by default the last) the bytes that ``stock`` Dask and
        the ``plan`` move, extrapolated from its first ``operands``; it is None, with a ``reason``,
        until there is one.
        """
        now = self._update()
        host_of = {ws.address: ws.host for ws in self.scheduler.workers.values()}
        sums = self._workers.counts()
        shares = self._workers.workers_with("shared") or sums["shared.by_handle"]
        moved = self._transfers.moved
        over_time = self._transfers.series.to_dict()
        over_time["time"].append(now)
        over_time["moved"].append(moved.total)
        estimate, reason = self._estimate(graph)
        return {
            "moved": moved.total,
            "unsure": self._transfers.unsure,
            "by_handle": int(sums["shared.bytes_by_handle"]) if shares else None,
            "by_comm": int(sums["shared.bytes_by_comm"]) if shares else None,
            "matrix": moved.table(most, host_of),
            "series": over_time,
            "estimate": estimate,
            "reason": reason,
        }

    def _estimate(self, graph: int | None) -> tuple[dict[str, Any] | None, str | None]:
        try:
            record = self.record(graph)
        except KeyError:
            return None, "no graph has been planned"
        threads = [ws.nthreads or 1 for ws in self.scheduler.workers.values()]
        return self._estimates.of(record, threads)

    def uninstall(self) -> None:
        """Stop estimating, as the event loop may end."""
        self._estimates.close()

    def kernels(self, most: int = 50) -> dict[str, Any]:
        """Return the work of fused kernels on the workers, as of their last heartbeats.

        ``saved`` is seconds of processor time compared with NumPy, ``compiled`` seconds of
        compiling, ``runs`` and ``fused`` chunks; at most `most` expressions, of the first four of
        each worker.
        """
        self._update()
        return self._workers.kernels(most)

    def faults(self) -> dict[str, Any]:
        """Return losses and failures since the plugin was registered, and the recoveries.

        ``excess`` counts operands computed again without need; ``last`` is of `Recoveries.report`,
        and ``outages`` are those of the scheduler.
        """
        self._update()
        totals = self._totals()
        return {
            **self._recoveries(),
            "retried": self.counters.retried,
            "fatal": totals[FATAL],
            "cancelled": totals[CANCELLED],
            "interrupted": int(self._workers.counts()["interrupts.interrupted"]),
            "exceptions": dict(self.counters.exceptions),
            "failure": self.failure,
            "outages": [dict(outage) for outage in self.outages],
        }
