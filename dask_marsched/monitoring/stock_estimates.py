"""Estimates, for planned graphs, the bytes that stock Dask would have moved between workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from distributed.utils import offload

from dask_marsched.core.graph import Edges, OperandGraph
from dask_marsched.core.graph_record import GraphRecord
from dask_marsched.core.plan import Unit
from dask_marsched.core.plan_layout import NO_UNIT
from dask_marsched.policies.planning.forecast import Forecaster


class StockEstimates:
    """Makes and keeps the estimates for the graphs that somebody asks about."""

    def __init__(self, caught: Callable[[str, Exception], None]) -> None:
        self._caught = caught
        self._found: dict[GraphRecord, dict[str, Any] | str] = {}
        self._running: asyncio.Future[dict[str, Any]] | None = None

    def forget(self, record: GraphRecord) -> None:
        """Drop the estimate for a graph."""
        self._found.pop(record, None)

    def close(self) -> None:
        """Cancel the estimate under way, as the event loop may end."""
        if self._running is not None:
            self._running.cancel()

    def of(
        self, record: GraphRecord, threads: list[int]
    ) -> tuple[dict[str, Any] | None, str | None]:
        """Return the estimate for a graph, or None and the reason why there is none yet."""
        if record not in self._found:
            if not threads:
                return None, "there are no workers to estimate for"
            self._start(record, threads)
        found = self._found[record]
        if isinstance(found, str):
            return None, found
        scale = record.operands / max(1, found["operands"])
        return {
            **found,
            "graph": record.number,
            "stock": found["stock"] * scale,
            "plan": found["plan"] * scale,
            "moved": record.moved,
            "of": record.operands,
        }, None

    def _start(self, record: GraphRecord, threads: list[int]) -> None:
        """Estimate in a thread, or at once if no event loop is running."""
        count = min(record.operands, MOST_OPERANDS)
        # Workers in proportion to the operands, but several.
        some = threads[: max(8, len(threads) * count // max(1, record.operands))]
        work = (_head(record, count), _units(record, count), some)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._found[record] = estimate(*work)
            return
        self._found[record] = "being estimated"

        def done(future: asyncio.Future[dict[str, Any]]) -> None:
            if record not in self._found or future.cancelled():
                return
            error = future.exception()
            if error is None:
                self._found[record] = future.result()
            else:
                self._found[record] = f"the estimate failed: {error!r}"
                self._caught("estimate", Exception(repr(error)))

        self._running = asyncio.ensure_future(offload(estimate, *work))
        self._running.add_done_callback(done)


def _head(record: GraphRecord, count: int) -> OperandGraph:
    """Return the first operands of a graph."""
    starts = record.starts[: count + 1].tolist()
    inputs = Edges(starts, record.flat[: starts[-1]].tolist())
    nbytes = record.nbytes[:count].tolist()
    return OperandGraph(range(count), inputs, nbytes, record.known[:count])


def _units(record: GraphRecord, count: int) -> list[Unit]:
    """Return the units of the first operands of a graph."""
    members: dict[int, list[int]] = {}
    for i, first in enumerate(record.unit_of[:count].tolist()):
        if first != NO_UNIT:
            members.setdefault(first, []).append(i)
    return [Unit(tuple(own)) for own in members.values()]


#: Most operands that are forecast: two forecasts of 2,000 take about 40 ms.
MOST_OPERANDS = 2000


def estimate(graph: OperandGraph, units: Sequence[Unit], threads: list[int]) -> dict[str, Any]:
    """Forecast the bytes moved by stock Dask and by a plan, on workers with these threads."""
    n = len(graph)
    run = Forecaster(graph, threads)
    return {
        "stock": run.stock().moved,
        "plan": run.plan(units).moved,
        "operands": n,
        "known_sizes": sum(graph.known) / n if n else 0.0,
    }
