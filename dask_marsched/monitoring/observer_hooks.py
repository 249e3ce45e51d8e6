"""Tracks the states of a scheduler's operands with the hooks of the observer.

Transitions are logged and processed in batches, which takes a third of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from dask.typing import Key

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.graph_record import (
    CANCELLED,
    CODES,
    FATAL,
    FINISHED,
    NAMES,
    NO_WORKER,
    SENT,
    Causes,
    GraphRecord,
    split,
)
from dask_marsched.core.plan import Unit
from dask_marsched.core.series import Series
from dask_marsched.fallbacks.counters import Counters
from dask_marsched.fallbacks.guard import guarded
from dask_marsched.monitoring.operand_codes import (
    CODE_OF,
    ENDS,
    FREQUENT,
    cause_of_end,
    cause_of_failure,
    code_at_end,
    code_of,
)
from dask_marsched.monitoring.stock_estimates import StockEstimates
from dask_marsched.monitoring.transfers import Transfers
from dask_marsched.monitoring.worker_metrics import ObservedWorkers

#: Most graphs that are remembered, and most operands in them; the oldest done are dropped.
_MOST_GRAPHS, _MOST_OPERANDS = 100, 2_000_000
#: Least seconds between two samples.
_EVERY = 1.0
#: Seconds during which the count of running tasks is reused.
_FRESH = 0.2
#: Bits for the index of an operand in its graph; the record's number is above them.
SHIFT = 32
_MASK = (1 << SHIFT) - 1
#: Most entries of the log, three for each transition; to process them takes a few milliseconds.
_MOST_LOGGED = 30_000
#: Up to this many entries of the log are processed one by one, which is faster for few.
_FEW = 48


class OperandTracker:
    """Tracks one scheduler; its subclass `Observer` answers questions about it.

    `failure` is the exception after which tracking has stopped.
    """

    def __init__(
        self,
        scheduler: Any,
        counters: Counters,
        clock: Callable[[], float],
        policies: Mapping[str, str],
        recoveries: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self.scheduler = scheduler
        self.counters = counters
        self.failure: str | None = None
        self.arriving = -1
        self.outages: Sequence[Mapping[str, Any]] = ()  #: See `Restarts`.
        self._clock = clock
        self._policies = dict(policies)
        self._recoveries = recoveries
        self._counted = float("-inf")
        self._reset()

    def _reset(self) -> None:
        self.due = float("-inf")
        self._workers = ObservedWorkers(self.scheduler)
        self._records: dict[int, GraphRecord] = {}
        self._slots = 0
        self._slot_of: dict[int, int] = {}
        #: Place of each operand of a planned graph: the slot of its record, and its index there.
        self._at: dict[Key, int] = {}
        #: Further places of operands of several graphs.
        self._also: dict[Key, list[int]] = {}
        #: Transitions that were not processed yet, three entries each: see `moved`.
        self._log: list[Any] = []
        #: Whether the log has transitions that must be processed one by one.
        self._rare = False
        self._failed = False
        #: When an operand was last computed, or failed.
        self._computed = float("-inf")
        #: Codes of the operands in no planned graph.
        self._loose: dict[Key, int] = {}
        self._others = [0] * CODES
        self._causes = Causes()
        self._series = Series(NAMES)
        self._running = 0
        self._worker_numbers: dict[str, int] = {}
        self._worker_names: list[str] = []
        self._transfers = Transfers()
        self._estimates = StockEstimates(self.counters.caught)

    @guarded(lambda: None, fatal=True)
    def planned(self, graph: OperandGraph, tasks: list[Any], units: Iterable[Unit]) -> None:
        """Track a graph that was planned; `tasks` are its operands by index."""
        if self.failure is not None:
            return
        self._catch_up()
        codes = list(map(code_of, tasks))
        now = self._clock()
        self.sample(now)  # the state before this graph
        record = GraphRecord(self.arriving, now, graph, units, codes)
        record.series.add(now, split(record.counts, 0))
        slot = self._slots
        self._slots += 1
        self._records[slot] = record
        self._slot_of[id(tasks)] = slot
        first = slot << SHIFT
        at, also = self._at, self._also
        keys = [ts.key for ts in tasks]
        for key in at.keys() & keys if at else ():  # also part of an earlier graph
            also.setdefault(key, []).append(at[key])
        for key in self._loose.keys() & keys if self._loose else ():
            self._others[self._loose.pop(key)] -= 1
        at.update(zip(keys, range(first, first + len(keys)), strict=True))
        for i, code in enumerate(codes):
            if code == SENT:
                record.set_worker(i, self._worker_number(tasks[i].processing_on.address))
        self._drop_old()

    @guarded(lambda: None, fatal=True)
    def planned_again(self, tasks: list[Any], units: Iterable[Unit]) -> None:
        """Record new units for some operands of a graph."""
        record = self._records.get(self._slot_of.get(id(tasks), -1))
        if record is not None and self.failure is None:
            record.plan_again(units)

    @guarded(lambda: None, fatal=True)
    def arrived(self, tasks: Iterable[Any]) -> None:
        """Track tasks that came with a graph and are in no plan."""
        if self.failure is not None:
            return
        self._catch_up()
        at, loose, counts = self._at, self._loose, self._others
        for ts in tasks:
            if ts.key not in at and ts.key not in loose:
                code = loose[ts.key] = code_of(ts)
                counts[code] += 1

    def moved(self, ts: Any, finish: str, stimulus_id: str) -> None:
        """Log a transition of a task. This and `_catch_up` are the cost of the observer."""
        if self.failure is not None:
            return
        try:
            more: Any = None
            if finish == "processing":
                more = ts.processing_on.address
            elif finish in ENDS:
                if ts.nbytes < 0:  # it was never computed
                    more = stimulus_id
                    self._rare = True
            elif finish == "memory":
                self._computed = self._clock()
            elif finish == "waiting":
                if ts.nbytes < 0 and not self._failed:
                    return  # its code is WAITING already
            elif finish == "erred":
                more = cause_of_failure(ts)
                self._rare = self._failed = True
                self._computed = self._clock()
            log = self._log
            log += (ts.key, finish, more)
            if len(log) > _MOST_LOGGED:
                self._catch_up()
        except Exception as error:
            self.counters.caught("moved", error)
            self.failure = f"moved failed: {type(error).__name__}: {error}"

    @guarded(lambda: None, fatal=True)
    def _catch_up(self) -> None:
        """Process the log."""
        log, self._log = self._log, []
        if self.failure is not None or not log:
            return
        keys, finishes, more = log[::3], log[1::3], log[2::3]
        # In a batch only the last transition of each operand counts. That is not enough if causes
        # are to be recorded, operands had failed before, or several graphs share an operand.
        if len(log) <= _FEW or self._also or self._rare or self._totals()[FATAL]:
            self._rare = False
            for transition in zip(keys, finishes, more, strict=True):
                self._moved_once(*transition)
            return
        places = np.array(list(map(self._at.get, keys, repeat(-1))), dtype=np.int64)
        codes = np.array(list(map(FREQUENT.__getitem__, finishes)), dtype=np.uint8)
        slots = places >> SHIFT
        sent = np.flatnonzero(codes == SENT).tolist()
        workers = np.full(len(keys), NO_WORKER, dtype=np.uint16)
        workers[sent] = [self._worker_number(more[k]) for k in sent]
        for slot in np.unique(slots).tolist():
            of_slot = slots == slot
            if slot in self._records:
                record = self._records[slot]
                record.set_codes(places[of_slot] & _MASK, codes[of_slot], workers[of_slot])
                self._check_done(record)
            elif slot < 0:
                for k in np.flatnonzero(of_slot).tolist():
                    self._moved_loose(keys[k], finishes[k], more[k])
        at_of = self._at
        for key, finish in zip(keys, finishes, strict=True):
            if finish == "forgotten":
                at_of.pop(key, None)

    def _moved_once(self, key: Key, finish: str, more: Any) -> None:
        at = self._at.get(key)
        if at is None:
            self._moved_loose(key, finish, more)
            return
        for place in (at, *self._also.get(key, ())):
            record = self._records.get(place >> SHIFT)
            if record is not None:
                self._moved_in(record, place & _MASK, key, finish, more)
                self._check_done(record)
        if finish == "forgotten":
            del self._at[key]
            self._also.pop(key, None)

    def _moved_in(self, record: GraphRecord, i: int, key: Key, finish: str, more: Any) -> None:
        before = record.codes[i]
        code = CODE_OF.get(finish)
        if code is None:
            if before == FATAL:
                return  # it stays fatal until it is retried
            code = code_at_end(before, finish, more)
            if code == CANCELLED != before:
                record.causes.add(*cause_of_end(key, more))
        elif code == SENT:
            record.set_worker(i, self._worker_number(more))
        elif code == FATAL != before:
            record.causes.add(*more)
        if code != before:
            record.set_code(i, code)

    def _check_done(self, record: GraphRecord) -> None:
        if not record.left and record.finished is None:
            record.finished = max(record.planned, min(self._computed, self._clock()))
            record.series.add(record.finished, split(record.counts, 0))

    def _moved_loose(self, key: Key, finish: str, more: Any) -> None:
        before = self._loose.get(key)
        code = CODE_OF.get(finish)
        if before is not None:
            self._others[before] -= 1
        if code is None:
            code = FATAL if before == FATAL else code_at_end(before, finish, more)
            if code == CANCELLED != before:
                self._causes.add(*cause_of_end(key, more))
        elif code == FATAL != before:
            self._causes.add(*more)
        self._others[code] += 1
        if finish == "forgotten":
            self._loose.pop(key, None)
        else:
            self._loose[key] = code

    @guarded(lambda: None, fatal=True)
    def fetched(self, worker: str, keys: Iterable[Key]) -> None:
        """Record results that a worker has fetched from others."""
        tasks, ws = self.scheduler.tasks, self.scheduler.workers.get(worker)
        if self.failure is not None or ws is None:
            return
        for key in keys:
            ts = tasks.get(key)
            if ts is None or ts.state != "memory":
                continue
            moved = self._transfers.fetched(ts, ws)
            record = self._records.get(self._at.get(key, -1) >> SHIFT)
            if record is not None:
                record.moved += moved

    @guarded(lambda: None, fatal=True)
    def worker_left(self, worker: str) -> None:
        """Record that a worker was removed."""
        self._workers.left(worker)
        self._transfers.moved.remove(worker)

    @guarded(lambda: None, fatal=True)
    def sample(self, now: float) -> None:
        """Add a sample to the series if it is due."""
        if now >= self.due and self.failure is None:
            self.due = now + _EVERY
            self._catch_up()
            self._count_running(now)
            self._sample_series(now)

    def clear(self) -> None:
        """Forget everything, as the cluster restarts."""
        self._estimates.close()
        self._reset()

    def _worker_number(self, address: str) -> int:
        number = self._worker_numbers.get(address)
        if number is None:
            number = self._worker_numbers[address] = min(len(self._worker_names), NO_WORKER - 1)
            if number == len(self._worker_names):
                self._worker_names.append(address)
        return number

    def _drop_old(self) -> None:
        """Drop the oldest graphs that are done, and running ones if there are too many graphs."""
        total = sum(record.operands for record in self._records.values())
        too_many = len(self._records) - _MOST_GRAPHS
        for slot, record in list(self._records.items())[:-1]:
            if total <= _MOST_OPERANDS and too_many <= 0:
                break
            if record.is_done() or too_many > 0:
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

    def _update(self) -> float:
        """Process the log before a question is answered; return the time."""
        now = self._clock()
        if self.failure is None:
            self._catch_up()
            if now - self._counted > _FRESH:
                self._count_running(now)
            self.sample(now)
        return now

    def _totals(self) -> list[int]:
        counts = list(self._others)
        for record in self._records.values():
            for code, count in enumerate(record.counts):
                counts[code] += count
        return counts

    def _record(self, graph: int | None) -> GraphRecord:
        """Return the record of a graph by its number, or the last one; raise KeyError."""
        records = list(self._records.values())
        if graph is None and records:
            return records[-1]
        for record in reversed(records):
            if record.number == graph:
                return record
        raise KeyError(f"there is no planned graph {'' if graph is None else graph}".rstrip())
