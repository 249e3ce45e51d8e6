"""Tracks the states of a scheduler's operands with the hooks of the observer.

Transitions are logged and processed in batches, which takes a third of the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
from dask.typing import Key

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.graph_record import (
    CANCELLED,
    FATAL,
    NO_WORKER,
    SENT,
    WAITING,
    Causes,
    GraphArrays,
    GraphRecord,
    split,
)
from dask_marsched.core.plan import Unit
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
from dask_marsched.monitoring.tracked_graphs import SHIFT, TrackedGraphs
from dask_marsched.monitoring.transfers import Transfers
from dask_marsched.monitoring.worker_metrics import ObservedWorkers

#: Least seconds between two samples.
_EVERY = 1.0
#: Seconds during which the count of running tasks is reused.
_FRESH = 0.2
_MASK = (1 << SHIFT) - 1
#: Most entries of the log, three for each transition; to process them takes a few milliseconds.
_MOST_LOGGED = 30_000
#: Seconds after which a new graph is recorded.
_LATER = 0.05
#: Up to this many entries of the log are processed one by one, which is faster for few.
_FEW_ENTRIES = 48


class OperandTracker(TrackedGraphs):
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
        self._reset()

    def _reset(self) -> None:
        self.due = float("-inf")
        self._workers = ObservedWorkers(self.scheduler)
        self._forget_graphs()
        self._slots = 0
        #: Further places of operands of several graphs.
        self._also: dict[Key, list[int]] = {}
        #: Transitions that were not processed yet, three entries each: see `moved`.
        self._log: list[Any] = []
        #: Graphs that were planned and are not recorded yet: the entries of the log at that time,
        #: the tasks, and what makes the record.
        self._unrecorded: list[tuple[int, list[Any], Callable[[], GraphRecord]]] = []
        #: Whether the log has transitions that must be processed one by one.
        self._rare = False
        self._failed = False
        #: When an operand was last computed, or failed.
        self._computed = float("-inf")
        #: Codes of the operands in no planned graph.
        self._loose: dict[Key, int] = {}
        self._causes = Causes()
        self._transfers = Transfers()
        self._estimates = StockEstimates(self.counters.caught)

    @guarded(lambda: None, fatal=True)
    def planned(
        self,
        graph: OperandGraph,
        tasks: list[Any],
        units: Iterable[Unit],
        arrays: GraphArrays | None = None,
    ) -> None:
        """Track a graph that was planned; `tasks` are its operands by index.

        None of them has begun if ``arrays`` are given. The graph is recorded a little later then,
        so that its first tasks are sent before.
        """
        new = arrays is not None
        codes = bytes([WAITING]) * len(tasks) if new else bytes(map(code_of, tasks))
        arrays = arrays or GraphArrays.of(graph)
        make = partial(GraphRecord, self.arriving, self._clock(), arrays, units, codes)
        self._unrecorded.append((len(self._log), tasks, make))
        if not (new and self._record_later()):
            self._record_planned()

    def _record_later(self) -> bool:
        """Record what was planned in a turn of the event loop of its own, if there is one."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        if len(self._unrecorded) == 1:
            loop.call_later(_LATER, self._record_planned)
        return True

    @guarded(lambda: None, fatal=True)
    def _record_planned(self) -> None:
        """Record the graphs that wait for it, each between the transitions before and after."""
        waiting, self._unrecorded = self._unrecorded, []
        if not waiting:
            return
        log, self._log = self._log, []
        rare, done = self._rare, 0
        for logged, tasks, make in waiting:
            self._process(log[done:logged])
            self._rare, done = rare, logged
            self._record_one(make(), tasks)
        self._log = log[done:]

    def _record_one(self, record: GraphRecord, tasks: list[Any]) -> None:
        self.sample(record.planned)  # the state before this graph
        record.series.add(record.planned, split(record.counts, 0))
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
        for i, code in enumerate(record.codes if SENT in record.codes else ()):
            if code == SENT:
                record.worker_of[i] = self._worker_number(tasks[i].processing_on.address)
        self._drop_old()
        self._counted = float("-inf")  # its running tasks were not counted yet

    @guarded(lambda: None, fatal=True)
    def planned_again(self, tasks: list[Any], units: Iterable[Unit]) -> None:
        """Record new units for some operands of a graph."""
        self._record_planned()
        record = self._records.get(self._slot_of.get(id(tasks), -1))
        if record is not None and self.failure is None:
            record.plan_again(units)

    @guarded(lambda: None, fatal=True)
    def arrived(self, tasks: Iterable[Any]) -> None:
        """Track tasks that came with a graph and are in no plan."""
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
            if len(log) > _MOST_LOGGED and not self._unrecorded:
                self._catch_up()
        except Exception as error:
            self.counters.caught("moved", error)
            self.failure = f"moved failed: {type(error).__name__}: {error}"

    @guarded(lambda: None, fatal=True)
    def _catch_up(self) -> None:
        """Record what was planned, and process the log."""
        self._record_planned()
        log, self._log = self._log, []
        self._process(log)

    def _process(self, log: list[Any]) -> None:
        """Process a part of the log."""
        if self.failure is not None or not log:
            return
        keys, finishes, more = log[::3], log[1::3], log[2::3]
        # In a batch only the last transition of each operand counts. That is not enough if causes
        # are to be recorded, operands had failed before, or several graphs share an operand.
        if len(log) <= _FEW_ENTRIES or self._also or self._rare or self._totals()[FATAL]:
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
        code = _code_after(record.codes[i], key, finish, more, record.causes)
        if code == SENT:
            record.worker_of[i] = self._worker_number(more)
        record.set_code(i, code)

    def _check_done(self, record: GraphRecord) -> None:
        if not record.left and record.finished is None:
            record.finished = max(record.planned, min(self._computed, self._clock()))
            record.series.add(record.finished, split(record.counts, 0))

    def _moved_loose(self, key: Key, finish: str, more: Any) -> None:
        before = self._loose.get(key)
        if before is not None:
            self._others[before] -= 1
        code = _code_after(before, key, finish, more, self._causes)
        self._others[code] += 1
        if finish == "forgotten":
            self._loose.pop(key, None)
        else:
            self._loose[key] = code

    @guarded(lambda: None, fatal=True)
    def fetched(self, worker: str, keys: Iterable[Key]) -> None:
        """Record results that a worker has fetched from others."""
        tasks, ws = self.scheduler.tasks, self.scheduler.workers.get(worker)
        if ws is None:
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

    def _update(self) -> float:
        """Process the log before a question is answered; return the time."""
        now = self._clock()
        if self.failure is None:
            self._catch_up()
            if now - self._counted > _FRESH:
                self._count_running(now)
            self.sample(now)
        return now


def _code_after(before: int | None, key: Key, finish: str, more: Any, causes: Causes) -> int:
    """Return the code after a transition (see `moved`), and count the cause of a bad end."""
    code = CODE_OF.get(finish)
    if code is None:
        if before == FATAL:
            return FATAL  # it stays so until it is retried
        code = code_at_end(before, finish, more)
        if code == CANCELLED != before:
            causes.add(*cause_of_end(key, more))
    elif code == FATAL != before:
        causes.add(*more)
    return code
