"""Answers the questions of dashboard, JSON API and reports about a scheduler: `Observer`.

If a hook fails, it stops observing (`Observer.failure` tells why) and the scheduler goes on.
Pictures of plans, memory histories of workers and estimates of stock Dask's transfers are made on
request only.
"""

from __future__ import annotations

import asyncio
from typing import Any

from dask_marsched.core.graph_record import (
    CANCELLED,
    FATAL,
    FINISHED,
    FREED,
    MOST_WORKERS,
    NAMES,
    NO_WORKER,
    READY,
    SENT,
    WAITING,
    Causes,
    GraphRecord,
    Picture,
    counts_by_state,
    split,
)
from dask_marsched.monitoring.observer_hooks import SHIFT, WATCHED, OperandTracker

#: Operands laid out in one step, a few milliseconds.
_STEP = 10_000
#: States of operands in the cells of a picture, but for those that depend on heartbeats.
_CELL_STATES = (
    ("unscheduled", WAITING),
    ("finished", FINISHED),
    ("freed", FREED),
    ("fatal", FATAL),
    ("cancelled", CANCELLED),
)


class Observer(OperandTracker):
    """Returns what `OperandTracker` has recorded of one scheduler.

    All methods return plain values for JSON, of bounded size whatever the size of the graph, that
    belong to the caller. Times are seconds of the scheduler's clock (as of `time.time`), sizes
    are bytes.
    """

    def graphs(self) -> list[dict[str, Any]]:
        """Return the planned graphs that are remembered, the oldest first; 100 at most.

        Returns
        -------
        list of dict
            ``number`` (the same as in `dask_marsched.operands`; -1 for tasks that existed when
            the plugin was registered), ``planned`` and ``finished`` (times; None while the graph
            is running), ``done``, ``operands``, ``units``, ``initial`` (operands in units),
            ``replanned`` (number of new plans), ``policies``, ``counts`` (by name of the state),
            ``moved`` (bytes of its results between workers).
        """
        self._update()
        return [
            {
                "number": record.number,
                "planned": record.planned,
                "finished": record.finished,
                "done": record.is_done(),
                "operands": record.operands,
                "units": record.unit_count(),
                "initial": record.initial,
                "replanned": record.replanned,
                "policies": dict(self._policies),
                "counts": counts_by_state(record.counts, record.running),
                "moved": record.moved,
            }
            for record in self._records.values()
        ]

    def plan(self, graph: int | None = None, most: int = 2000) -> dict[str, Any]:
        """Return the picture of a graph's plan.

        Parameters
        ----------
        graph
            The graph's number; None for the last one.
        most
            Cells at most. A graph with no more operands has a cell for each.

        Returns
        -------
        dict
            ``graph``, ``operands``, ``units``; ``ready``, False while a large graph is being laid
            out (ask again, or await `drawn`), and ``share`` of that work done; ``columns`` and
            ``rows``, the size of the picture; ``depth``, the number of depths that the columns
            represent; ``aggregated``, whether cells represent several operands; ``workers``,
            addresses; and ``cells``, a dict of lists of equal length: ``column`` (depth, from 0),
            ``row`` (position of the unit, from 0 at the top), ``operands``, ``worker`` (index of
            the worker that got most operands of the cell, -1 for none yet), ``worker_share`` (of
            the operands that were sent), and the number of operands by state: ``unscheduled``,
            ``ready``, ``running``, ``finished``, ``freed``, ``fatal``, ``cancelled``.

        Raises
        ------
        KeyError
            The graph does not exist or is no longer remembered.
        """
        self._update()
        record = self._record(graph)
        picture = record.draw(most)
        if not picture.layout.done:
            self._lay_out(picture)
        layout = picture.layout
        found: dict[str, Any] = {
            "graph": record.number,
            "operands": record.operands,
            "units": record.unit_count(),
            "ready": layout.done,
            "share": layout.share,
            "columns": layout.columns,
            "depth": layout.depth,
            "rows": layout.rows,
            "aggregated": len(layout.column) < record.operands,
            "workers": self._worker_names[: MOST_WORKERS - 1],
            "cells": {},
        }
        if len(self._worker_names) >= MOST_WORKERS:
            found["workers"] = [*found["workers"], "others"]
        if layout.done:
            found["cells"] = self._cells(record, picture)
        return found

    def draw(self, graph: int | None, most: int) -> Picture:
        """Return the picture of a graph on which `plan` is based, laid out or not."""
        return self._record(graph).draw(most)

    async def drawn(self, graph: int | None = None, most: int = 2000) -> dict[str, Any]:
        """Return what `plan` returns once it is ready."""
        while not (found := self.plan(graph, most))["ready"]:
            await asyncio.sleep(0)
        return found

    def _lay_out(self, picture: Picture) -> None:
        """Lay out a picture in steps, between which the event loop can run other callbacks."""
        if picture.advance(_STEP) or picture.is_being_drawn:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            while not picture.advance(_STEP):
                pass
        else:
            picture.is_being_drawn = True
            loop.call_soon(self._continue, picture, loop)

    def _continue(self, picture: Picture, loop: asyncio.AbstractEventLoop) -> None:
        if not picture.advance(_STEP):
            loop.call_soon(self._continue, picture, loop)

    def _cells(self, record: GraphRecord, picture: Picture) -> dict[str, list[Any]]:
        by_code, worker, share = picture.cells()
        layout = picture.layout
        running = [0] * len(layout.column)
        for ws in self.scheduler.workers.values():
            for ts in ws.executing:
                at = self._at.get(ts.key, -1)
                if ts.processing_on is ws and self._records.get(at >> SHIFT) is record:
                    running[int(layout.cell_of[at & ((1 << SHIFT) - 1)])] += 1
        sent = by_code[:, SENT].tolist()
        running = [min(r, s) for r, s in zip(running, sent, strict=True)]
        ready = [
            q + s - r for q, s, r in zip(by_code[:, READY].tolist(), sent, running, strict=True)
        ]
        return {
            "column": layout.column.tolist(),
            "row": layout.row.tolist(),
            "operands": by_code.sum(1).tolist(),
            "worker": [-1 if w == NO_WORKER else w for w in worker.tolist()],
            "worker_share": share.tolist(),
            "ready": ready,
            "running": running,
            **{name: by_code[:, code].tolist() for name, code in _CELL_STATES},
        }

    def operand_counts(self, graph: int | None = None) -> dict[str, Any]:
        """Return the numbers of operands by state, now and over time.

        Parameters
        ----------
        graph
            The graph's number; None for all operands since the plugin was registered.

        Returns
        -------
        dict
            ``counts`` by name of the state, now. ``series``: ``time`` and a list for each of
            ``unscheduled``, ``ready``, ``running``, ``finished``, ``freed``, ``fatal``,
            ``cancelled``; at most 240 points. ``causes`` of fatal and cancelled operands, the most
            frequent first: ``state``, ``operand`` (name of the operation that failed first or was
            cancelled), ``cause``, ``count``.

        Raises
        ------
        KeyError
            The graph does not exist or is no longer remembered.
        """
        now = self._update()
        if graph is None:
            counts, running, series = self._totals(), self._running, self._series
            causes = Causes.joined(
                [self._causes, *(record.causes for record in self._records.values())]
            )
            end = now
        else:
            record = self._record(graph)
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
        """Return the memory of the workers, bytes, according to their last heartbeats.

        The history of each worker is recorded from the first call on, until there was no call for
        half a minute.

        Parameters
        ----------
        most
            Number of workers at most, the fullest.

        Returns
        -------
        dict
            ``workers``, for each: ``worker`` (address), ``name``, ``host``, ``status``, ``limit``
            or None, ``process`` (all its memory), which consists of ``private`` results, results
            ``mapped`` from others, ``shared`` results that it published, and ``other``; ``disk``;
            ``quota`` (its limit), ``used``, ``promised``, ``queued``, ``deferrals``, ``forced``,
            ``evictions``, None if the quota is off; ``last_seen``; ``recent``: lists ``time``,
            ``used``, ``process``, ``disk``. ``more_workers`` that are not shown; ``quota_on``;
            ``total``: sums over all workers over time; ``thresholds`` ``target``, ``spill``,
            ``pause`` and ``terminate`` of Dask's workers, as shares of the limit or None for off
            (according to the scheduler's configuration).
        """
        now = self._clock()
        if now - self._asked_for_memory > WATCHED:
            self.due = now  # so that the first caller gets a sample
        self._asked_for_memory = now
        self._update()
        return self._workers.memory(most)

    def transfers(self, most: int = 32, graph: int | None = None) -> dict[str, Any]:
        """Return the bytes of results moved between workers since the plugin was registered.

        The scheduler counts them when a worker reports what it has fetched, without P2P shuffles.
        Bytes received as handles (mapped on the same host) and by connection are counted by the
        workers that share memory.

        Parameters
        ----------
        most
            Rows and columns of the matrix at most. With more workers it is between hosts, and
            those that moved least are summed as ``others``.
        graph
            The graph to estimate for; None for the last one.

        Returns
        -------
        dict
            ``moved``, bytes; ``unsure``, those of them that several workers could have sent, so
            that each counts a part; ``by_handle`` and ``by_comm``, bytes, None if no worker shares
            memory; ``matrix``: ``between`` (``"workers"`` or ``"hosts"``), ``names``, ``bytes`` (a
            row for each sender, a column for each receiver); ``series``: ``time``, ``moved``;
            ``estimate``: forecasts for ``graph`` of the bytes moved by ``stock`` Dask and by the
            ``plan``, and the bytes really ``moved``, which show how accurate the forecasts are;
            extrapolated from the first ``operands`` out ``of`` all, of whose sizes the share
            ``known_sizes`` was known. None, with the ``reason``, if there is no estimate yet.
        """
        now = self._update()
        host_of = {ws.address: ws.host for ws in self.scheduler.workers.values()}
        sums = self._workers.counts()
        shares = self._workers.parts()["shared"] or sums["shared.by_handle"]
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
            record = self._record(graph)
        except KeyError:
            return None, "no graph has been planned"
        threads = [ws.nthreads or 1 for ws in self.scheduler.workers.values()]
        return self._estimates.of(record, threads)

    def close(self) -> None:
        """Stop estimating, as the event loop may end."""
        self._estimates.close()

    def kernels(self, most: int = 50) -> dict[str, Any]:
        """Return the work of fused kernels on the workers, according to their last heartbeats.

        Parameters
        ----------
        most
            Expressions at most. Heartbeats contain the first four of each worker.

        Returns
        -------
        dict
            ``workers_on``, how many of the ``workers`` use kernels; ``saved``, seconds of
            processor time compared with NumPy; ``runs``, chunks evaluated, and ``fused``, those
            not evaluated by NumPy; ``compiled``, seconds spent on compiling; ``expressions``:
            ``text``, ``dtypes``, ``backend``, ``runs``, ``saved``, ``compiled``, ``given_up``
            (backends that failed on it), ``workers``; ``more_expressions``.
        """
        self._update()
        return self._workers.kernels(most)

    def faults(self) -> dict[str, Any]:
        """Return losses and failures since the plugin was registered, and the recoveries.

        Returns
        -------
        dict
            ``losses`` of workers with results or tasks, ``recovered`` ones, ``results_lost``,
            ``results_adopted``, operands ``computed_again`` and how many of these in ``excess`` of
            the necessary ones; ``last``: the last 20 losses, see `Recoveries.report`;
            ``retried``, ``fatal``, ``cancelled`` and ``interrupted`` operands; ``exceptions``
            caught in the plugin's hooks; ``failure`` of the observer, or None.
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
        }
