"""Holds the records of planned graphs, and counts all operands: `TrackedGraphs`."""

from __future__ import annotations

from typing import Any

from dask.typing import Key

from dask_marsched.core.graph_record import CODES, FINISHED, NAMES, NO_WORKER, GraphRecord, split
from dask_marsched.core.series import Series
from dask_marsched.monitoring.stock_estimates import StockEstimates
from dask_marsched.monitoring.transfers import Transfers
from dask_marsched.monitoring.worker_metrics import ObservedWorkers

#: Most graphs that are remembered, and most operands in them; the oldest done are dropped.
_MOST_GRAPHS, _MOST_OPERANDS = 100, 2_000_000
#: Bits for the index of an operand in its graph; the record's number is above them.
SHIFT = 32


class TrackedGraphs:
    """The graphs of one scheduler that are remembered."""

    scheduler: Any
    _workers: ObservedWorkers
    _transfers: Transfers
    _estimates: StockEstimates

    def _forget_graphs(self) -> None:
        self._records: dict[int, GraphRecord] = {}
        self._slot_of: dict[int, int] = {}
        #: Place of each operand of a planned graph: the slot of its record, and its index there.
        self._at: dict[Key, int] = {}
        self._others = [0] * CODES
        self._series = Series(NAMES)
        self._running = 0
        #: When the running tasks were counted.
        self._counted = float("-inf")
        self._worker_numbers: dict[str, int] = {}
        self._worker_names: list[str] = []

    def _worker_number(self, address: str) -> int:
        number = self._worker_numbers.get(address)
        if number is None:
            number = min(len(self._worker_names), NO_WORKER - 1)
            if number == len(self._worker_names):
                self._worker_names.append(address)
                self._worker_numbers[address] = number
        return number

    def _drop_old(self) -> None:
        """Drop the oldest graphs that are done, and running ones if there are too many graphs."""
        total = sum(record.operands for record in self._records.values())
        too_many = len(self._records) - _MOST_GRAPHS
        for slot, record in list(self._records.items())[:-1]:
            if total <= _MOST_OPERANDS and too_many <= 0:
                break
            if not record.left or too_many > 0:
                del self._records[slot]
                total -= record.operands
                too_many -= 1
                self._estimates.forget(record)
                for code, count in enumerate(record.counts):
                    # Unfinished operands are not tracked any more.
                    if code >= FINISHED:
                        self._others[code] += count
        self._slot_of = {i: slot for i, slot in self._slot_of.items() if slot in self._records}

    def _sample_series(self, now: float) -> None:
        for record in self._records.values():
            if record.finished is None and record.series.due(now):
                record.series.add(now, split(record.counts, record.running))
        if self._series.due(now):
            self._series.add(now, split(self._totals(), self._running))
        self._transfers.sample(now)
        self._workers.sample(now)

    def _count_running(self, now: float) -> None:
        """Count running tasks according to the workers' last heartbeats."""
        self._counted = now
        for record in self._records.values():
            record.running = 0
        self._running = 0
        for ws in self.scheduler.workers.values():
            for ts in ws.executing:
                if ts.processing_on is ws:
                    self._running += 1
                    found = self._records.get(self._at.get(ts.key, -1) >> SHIFT)
                    if found is not None:
                        found.running += 1

    def _totals(self) -> list[int]:
        counts = list(self._others)
        for record in self._records.values():
            for code, count in enumerate(record.counts):
                counts[code] += count
        return counts

    def record(self, graph: int | None) -> GraphRecord:
        """Return the record of a graph by its number, or the last one; raise KeyError."""
        records = list(self._records.values())
        if graph is None and records:
            return records[-1]
        for record in reversed(records):
            if record.number == graph:
                return record
        raise KeyError(f"there is no planned graph {'' if graph is None else graph}".rstrip())
