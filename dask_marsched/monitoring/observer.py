"""The observer: what dashboard, JSON API and reports tell of a scheduler, in plain bounded values.

``scheduler.plugins["marsched"].observer`` is it, None where ``marsched.observer.enabled`` is off or
the plugin is not in force. It never steers: a hook of it that fails ends it (`Observer.failure`
tells why), and the scheduler goes on.

What is followed when: each transition of an operand changes one byte and two counts. Counts over
time and the memory of all workers together are sampled when operands move, once a second at most
(less often as time goes by), and whenever somebody asks. Pictures of plans, the history of each
worker's memory and estimates of what stock Dask would have moved are made only for those who ask.
Workers tell their figures with the heartbeats that they send anyway
(`dask_marsched.worker.heartbeat_metrics`); nobody is asked anything for a page.
"""

from __future__ import annotations

import asyncio
from typing import Any

from distributed.utils import offload

from dask_marsched.core.graph import Edges, OperandGraph
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
from dask_marsched.core.plan import Unit
from dask_marsched.core.plan_layout import NO_UNIT
from dask_marsched.monitoring.observer_hooks import LOOKS, SHIFT, Following
from dask_marsched.policies import stock_estimate
from dask_marsched.policies.stock_estimate import StockEstimate

#: Operands laid out in one go, a few milliseconds.
_AT_ONCE = 10_000


class Observer(Following):
    """Tells of one scheduler what `Following` has found.

    All that is returned is made of dicts with text keys, lists, text, numbers, booleans and None,
    of bounded size whatever the graph's, and belongs to the caller. Times are seconds of the
    scheduler's clock (as of `time.time`), sizes are bytes.
    """

    _estimating: asyncio.Future[StockEstimate] | None = None

    def graphs(self) -> list[dict[str, Any]]:
        """Return the planned graphs that are remembered, the oldest first; 100 at most.

        Returns
        -------
        list of dict
            ``number`` (the same as in `dask_marsched.operands`; -1 for what was there when the
            plugin was registered), ``planned`` and ``finished`` (seconds; None while it goes on),
            ``done``, ``operands``, ``units``, ``initial`` (operands in units), ``replanned``
            (times), ``policies``, ``counts`` (by name of the state), ``moved`` (bytes of its
            results between workers).
        """
        self._asked()
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
            out (ask again, or await `drawn`), and ``share`` of that work done. Then ``columns``
            and ``rows``, the size of the picture; ``depth``, how many depths the columns stand
            for; ``aggregated``, whether cells stand for several
            operands; ``workers``, addresses; and ``cells``, a dict of lists of equal length:
            ``column`` (depth, from 0), ``row`` (place of the unit, from 0 at the top),
            ``operands``, ``worker`` (index of the one that most operands of the cell were sent
            to, -1 for none yet), ``worker_share`` (of the operands that were sent), and the
            number of operands by state: ``unscheduled``, ``ready``, ``running``, ``finished``,
            ``freed``, ``fatal``, ``cancelled``.

        Raises
        ------
        KeyError
            There is no such graph.
        """
        self._asked()
        record = self._record(graph)
        picture = record.draw(most)
        if not picture.layout.done:
            self._go_on(picture)
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
        """Return the picture of a graph, laid out or not; `plan` shows it."""
        return self._record(graph).draw(most)

    async def drawn(self, graph: int | None = None, most: int = 2000) -> dict[str, Any]:
        """Return what `plan` does, once it is ready."""
        while not (found := self.plan(graph, most))["ready"]:
            await asyncio.sleep(0)
        return found

    def _go_on(self, picture: Picture) -> None:
        """Lay out a step. The event loop gets its turns between two of them."""
        if picture.advance(_AT_ONCE) or picture.is_being_drawn:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            while not picture.advance(_AT_ONCE):
                pass
        else:
            picture.is_being_drawn = True
            loop.call_soon(self._continue, picture, loop)

    def _continue(self, picture: Picture, loop: asyncio.AbstractEventLoop) -> None:
        if not picture.advance(_AT_ONCE):
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
            "unscheduled": by_code[:, WAITING].tolist(),
            "ready": ready,
            "running": running,
            "finished": by_code[:, FINISHED].tolist(),
            "freed": by_code[:, FREED].tolist(),
            "fatal": by_code[:, FATAL].tolist(),
            "cancelled": by_code[:, CANCELLED].tolist(),
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
            ``cancelled``; 240 points at most over the whole time. ``causes``: of fatal and
            cancelled operands, the most frequent first: ``state``, ``operand`` (name of the
            operation that failed first, or was given up), ``cause``, ``count``.

        Raises
        ------
        KeyError
            There is no such graph.
        """
        now = self._asked()
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
        """Return the memory of the workers, bytes, as their last heartbeats tell.

        Each worker is followed over time from the first call on, until nobody has called for half
        a minute.

        Parameters
        ----------
        most
            Workers at most, the fullest.

        Returns
        -------
        dict
            ``workers``, for each: ``worker`` (address), ``name``, ``host``, ``status``, ``limit``
            (None where there is none), ``process`` (all that it takes), of this ``private``
            results, ``mapped`` ones of others, ``shared`` ones that it published, and ``other``;
            ``disk``; of the quota ``quota`` (its limit), ``used``, ``promised``, ``queued``,
            ``deferrals``, ``forced``, ``evictions``, None where the quota is off; ``last_seen``;
            ``recent``: lists ``time``, ``used``, ``process``, ``disk``. ``more_workers`` that are
            not shown; ``quota_on``; ``total``: the sums over all workers over time; ``thresholds``
            of the limit at which Dask's workers ``target``, ``spill``, ``pause``, ``terminate``
            (of the scheduler's configuration; a share, or None for off).
        """
        now = self._clock()
        if now - self._looked_closely > LOOKS:
            self.due = now  # whoever begins to look sees something at once
        self._looked_closely = now
        self._asked()
        return self._workers.memory(most)

    def transfers(self, most: int = 32, graph: int | None = None) -> dict[str, Any]:
        """Return the bytes of results moved between workers since the plugin was registered.

        Counted on the scheduler when a worker reports what it has fetched; P2P shuffles are not
        among them. What came by handle (mapped on the same host) and by connection the workers
        that share memory count themselves.

        Parameters
        ----------
        most
            Rows and columns of the matrix at most. Where there are more workers it is between
            hosts, and of these the ones that moved least count as ``others``.
        graph
            The graph to estimate for; None for the last one.

        Returns
        -------
        dict
            ``moved``, bytes; ``unsure``, of these bytes that several workers could have sent, so
            that each counts a part; ``by_handle`` and ``by_comm``, bytes, None where no worker
            shares memory; ``matrix``: ``between`` (``"workers"`` or ``"hosts"``), ``names``,
            ``bytes`` (a row for each sender, a column for each receiver); ``series``: ``time``,
            ``moved``; ``estimate``: an *estimate* of ``stock``, the bytes that stock Dask would
            have moved of ``graph``, beside the ``plan``'s by the same forecast (which tells how
            far to trust it) and those really ``moved``; from the first ``operands`` ``of`` so
            many, extrapolated, of whose sizes ``known_sizes`` (a share) were known. None, with
            the ``reason``, where there is none (yet).
        """
        now = self._asked()
        host_of = {ws.address: ws.host for ws in self.scheduler.workers.values()}
        sums = self._workers.counts()
        shares = self._workers.parts()["shared"] or sums["shared.by_handle"]
        over_time = self._moved_over_time.to_dict()
        over_time["time"].append(now)
        over_time["moved"].append(self._moved.total)
        estimate, reason = self._estimate(graph)
        return {
            "moved": self._moved.total,
            "unsure": self._unsure,
            "by_handle": int(sums["shared.bytes_by_handle"]) if shares else None,
            "by_comm": int(sums["shared.bytes_by_comm"]) if shares else None,
            "matrix": self._moved.table(most, host_of),
            "series": over_time,
            "estimate": estimate,
            "reason": reason,
        }

    def _estimate(self, graph: int | None) -> tuple[dict[str, Any] | None, str | None]:
        try:
            record = self._record(graph)
        except KeyError:
            return None, "no graph has been planned"
        slot = next(slot for slot, one in self._records.items() if one is record)
        if slot not in self._estimates:
            threads = [ws.nthreads or 1 for ws in self.scheduler.workers.values()]
            if not threads:
                return None, "there are no workers to estimate for"
            self._start_estimate(slot, record, threads)
        found = self._estimates[slot]
        if isinstance(found, str):
            return None, found
        scale = record.operands / max(1, found.operands)
        return {
            "graph": record.number,
            "stock": found.stock * scale,
            "plan": found.plan * scale,
            "moved": record.moved,
            "operands": found.operands,
            "of": record.operands,
            "known_sizes": found.known,
        }, None

    def _start_estimate(self, slot: int, record: GraphRecord, threads: list[int]) -> None:
        """Estimate in a thread where there is an event loop to hold up."""
        count = min(record.operands, stock_estimate.MOST)
        # On as many fewer workers as the operands are fewer, but several.
        some = threads[: max(8, len(threads) * count // max(1, record.operands))]
        work = (_head(record, count), _units(record, count), some)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._estimates[slot] = stock_estimate.estimate(*work)
            return
        self._estimates[slot] = "being estimated"

        def done(future: asyncio.Future[StockEstimate]) -> None:
            if slot not in self._records or future.cancelled():
                return
            error = future.exception()
            if error is None:
                self._estimates[slot] = future.result()
            else:
                self._estimates[slot] = f"the estimate failed: {error!r}"
                self.counters.caught("estimate", Exception(repr(error)))

        self._estimating = asyncio.ensure_future(offload(stock_estimate.estimate, *work))
        self._estimating.add_done_callback(done)

    def close(self) -> None:
        """Wait for no estimate any more: the event loop may end."""
        if self._estimating is not None:
            self._estimating.cancel()

    def kernels(self, most: int = 50) -> dict[str, Any]:
        """Return what fused kernels do on the workers, as their last heartbeats tell.

        Parameters
        ----------
        most
            Expressions at most, those that matter most. Of each worker the first four are known.

        Returns
        -------
        dict
            ``workers_on``, how many workers of ``workers`` evaluate by kernels; ``saved``, seconds
            of processor time that NumPy would have taken more; ``runs`` and ``fused``, chunks
            evaluated and those of them not by NumPy; ``compiled``, seconds spent on compiling;
            ``expressions``: ``text``, ``dtypes``, ``backend``, ``runs``, ``saved``, ``compiled``,
            ``given_up`` (backends that failed on it), ``workers``; ``more_expressions``.
        """
        self._asked()
        return self._workers.kernels(most)

    def faults(self) -> dict[str, Any]:
        """Return what died or failed since the plugin was registered, and what became of it.

        Returns
        -------
        dict
            ``losses`` of workers that held or ran something, ``recovered`` of them,
            ``results_lost``, ``results_adopted``, ``computed_again`` operands and how many of
            these in ``excess`` of what had to be; ``last``: the last 20 losses, see
            `Recoveries.report`; ``retried`` operands; ``fatal`` and ``cancelled`` operands;
            ``interrupted`` ones on workers; ``exceptions`` caught in our
            hooks; ``failure`` of the observer itself, or None.
        """
        self._asked()
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


def _head(record: GraphRecord, count: int) -> OperandGraph:
    """Return the first operands of a graph."""
    starts = record.starts[: count + 1].tolist()
    inputs = Edges(starts, record.flat[: starts[-1]].tolist())
    nbytes = record.nbytes[:count].tolist()
    return OperandGraph(range(count), inputs, nbytes, record.known[:count])


def _units(record: GraphRecord, count: int) -> list[Unit]:
    members: dict[int, list[int]] = {}
    for i, first in enumerate(record.unit_of[:count].tolist()):
        if first != NO_UNIT:
            members.setdefault(first, []).append(i)
    return [Unit(tuple(own)) for own in members.values()]
