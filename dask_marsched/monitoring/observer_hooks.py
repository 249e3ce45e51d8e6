"""Tracks the states of a scheduler's operands: the hooks of the observer.

A transition of an operand is only written down. What was written down is gone through when it is
time for another sample, when there is much of it, and before somebody is told of anything: many at
once take a third of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
from dask_marsched.core.moved_bytes import MovedBytes
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
from dask_marsched.monitoring.worker_metrics import ObservedWorkers
from dask_marsched.policies.stock_estimate import StockEstimate

#: Graphs that are remembered, and operands of them together: the oldest done are dropped.
_MOST_GRAPHS, _MOST_OPERANDS = 100, 2_000_000
#: Seconds between two samples, at least.
_EVERY = 1.0
#: Seconds for which somebody who has asked for memory is taken to look on.
LOOKS = 30.0
#: Seconds for which what workers run is not looked up again.
_FRESH = 0.2
#: Where the number of an operand in its graph ends, and that of the record begins.
SHIFT = 32
_MASK = (1 << SHIFT) - 1
#: Entries of the log at most: some ten thousand transitions, a few milliseconds.
_MOST_LOGGED = 30_000
#: Entries of the log, three a transition, that are gone through faster one by one than together.
_FEW = 48


class Following:
    """Follows one scheduler. `dask_marsched.monitoring.observer.Observer` tells what it found.

    Parameters
    ----------
    scheduler
        A `distributed.Scheduler`, read only.
    counters
        Where failures of this are counted.
    clock
        Returns the time in seconds.
    policies
        Name of the policy in force, by kind.
    recoveries
        Returns what `dask_marsched.scheduling.worker_losses.Recoveries.report` does.

    Attributes
    ----------
    failure : str or None
        Why nothing is followed any more.
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
        #: Number of the graph that is being planned.
        self.arriving = -1
        self._clock = clock
        self._policies = dict(policies)
        self._recoveries = recoveries
        self._looked_closely = self._looked = float("-inf")
        self._reset()

    def _reset(self) -> None:
        #: From when on it is time for another sample.
        self.due = float("-inf")
        self._workers = ObservedWorkers(self.scheduler)
        self._records: dict[int, GraphRecord] = {}
        self._slots = 0
        self._slot_of: dict[int, int] = {}
        #: Where each operand of a planned graph is: its record and its number in it.
        self._at: dict[Key, int] = {}
        #: The same for those of several graphs, in the others.
        self._also: dict[Key, list[int]] = {}
        #: Transitions that were not gone through, three entries each: see `moved`.
        self._log: list[Any] = []
        #: Whether one of them has to be looked at for itself.
        self._rare = False
        #: Whether anything has failed ever.
        self._failed = False
        #: When an operand was computed, or failed, last.
        self._computed = float("-inf")
        #: The codes of all other operands.
        self._loose: dict[Key, int] = {}
        self._others = [0] * CODES
        self._causes = Causes()
        self._series = Series(NAMES)
        self._running = 0
        self._worker_numbers: dict[str, int] = {}
        self._worker_names: list[str] = []
        self._moved = MovedBytes()
        self._moved_over_time = Series(("moved",))
        self._unsure = 0.0
        self._estimates: dict[int, StockEstimate | str] = {}

    # -- hooks -----------------------------------------------------------------------------

    @guarded(lambda: None, fatal=True)
    def planned(self, graph: OperandGraph, tasks: list[Any], units: Iterable[Unit]) -> None:
        """Follow a graph that was planned; `tasks` are its operands by number."""
        if self.failure is not None:
            return
        self._catch_up()
        codes = list(map(code_of, tasks))
        now = self._clock()
        self.sample(now)  # what was before, where nothing has moved for long
        record = GraphRecord(self.arriving, now, graph, units, codes)
        record.series.add(now, split(record.counts, 0))
        slot = self._slots
        self._slots += 1
        self._records[slot] = record
        self._slot_of[id(tasks)] = slot
        first = slot << SHIFT
        at, also = self._at, self._also
        keys = [ts.key for ts in tasks]
        for key in at.keys() & keys if at else ():  # of a graph before, that still goes on
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
        """Take note of other units for some operands of a graph."""
        record = self._records.get(self._slot_of.get(id(tasks), -1))
        if record is not None and self.failure is None:
            record.plan_again(units)

    @guarded(lambda: None, fatal=True)
    def arrived(self, tasks: Iterable[Any]) -> None:
        """Follow tasks that came with a graph and are in no plan."""
        if self.failure is not None:
            return
        self._catch_up()
        at, loose, counts = self._at, self._loose, self._others
        for ts in tasks:
            if ts.key not in at and ts.key not in loose:
                code = loose[ts.key] = code_of(ts)
                counts[code] += 1

    def moved(self, ts: Any, finish: str, stimulus_id: str) -> None:
        """Take note of a transition of a task. This and `_catch_up` are what the observer costs."""
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
                    return  # as it came
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
        """Go through what was written down."""
        log, self._log = self._log, []
        if self.failure is not None or not log:
            return
        keys, finishes, more = log[::3], log[1::3], log[2::3]
        # Whatever happens to an operand meanwhile, the last of it counts; unless a cause is to be
        # kept, what failed comes to its end, or several graphs have it.
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
                self._look_whether_done(record)
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
                self._look_whether_done(record)
        if finish == "forgotten":
            del self._at[key]
            self._also.pop(key, None)

    def _moved_in(self, record: GraphRecord, i: int, key: Key, finish: str, more: Any) -> None:
        before = record.codes[i]
        code = CODE_OF.get(finish)
        if code is None:
            if before == FATAL:
                return  # it stays so for those who look, until it is tried again
            code = code_at_end(before, finish, more)
            if code == CANCELLED != before:
                record.causes.add(*cause_of_end(key, more))
        elif code == SENT:
            record.set_worker(i, self._worker_number(more))
        elif code == FATAL != before:
            record.causes.add(*more)
        if code != before:
            record.set_code(i, code)

    def _look_whether_done(self, record: GraphRecord) -> None:
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
        """Take note of results that a worker has got from others."""
        if self.failure is not None:
            return
        tasks, ws = self.scheduler.tasks, self.scheduler.workers.get(worker)
        if ws is None:
            return
        for key in keys:
            ts = tasks.get(key)
            if ts is None or ts.state != "memory":
                continue
            holders = [one for one in ts.who_has if one is not ws]
            if not holders:
                continue  # adopted from a worker that died: nothing was moved
            nbytes = ts.get_nbytes()
            if len(holders) == 1:
                self._moved.add(holders[0].address, worker, nbytes)
            else:
                self._moved_from_several(holders, ws, nbytes)
            record = self._records.get(self._at.get(key, -1) >> SHIFT)
            if record is not None:
                record.moved += nbytes

    def _moved_from_several(self, holders: list[Any], ws: Any, nbytes: int) -> None:
        # A worker fetches from its own host where it can; beyond that nobody tells.
        holders = [one for one in holders if one.host == ws.host] or holders
        if len(holders) > 1:
            self._unsure += nbytes
        for one in holders:
            self._moved.add(one.address, ws.address, nbytes / len(holders))

    @guarded(lambda: None, fatal=True)
    def worker_left(self, worker: str) -> None:
        """Take note that a worker was removed."""
        self._workers.left(worker)
        self._moved.remove(worker)

    @guarded(lambda: None, fatal=True)
    def sample(self, now: float) -> None:
        """Take note of how things stand, if it is time; called when operands move."""
        if now >= self.due and self.failure is None:
            self.due = now + _EVERY
            self._catch_up()
            self._look_up_running(now)
            self._look(now)

    def clear(self) -> None:
        """Forget everything: the cluster restarts."""
        self._reset()

    # -- keeping up ------------------------------------------------------------------------

    def _worker_number(self, address: str) -> int:
        number = self._worker_numbers.get(address)
        if number is None:
            number = self._worker_numbers[address] = min(len(self._worker_names), NO_WORKER - 1)
            if number == len(self._worker_names):
                self._worker_names.append(address)
        return number

    def _drop_old(self) -> None:
        """Drop the oldest graphs that are done, and whatever graph is too much."""
        total = sum(record.operands for record in self._records.values())
        too_many = len(self._records) - _MOST_GRAPHS
        for slot, record in list(self._records.items())[:-1]:
            if total <= _MOST_OPERANDS and too_many <= 0:
                break
            if record.is_done() or too_many > 0:
                del self._records[slot]
                total -= record.operands
                too_many -= 1
                self._estimates.pop(slot, None)
                for code, count in enumerate(record.counts):
                    # What goes on is not followed any more.
                    if code >= FINISHED:
                        self._others[code] += count
        self._slot_of = {i: slot for i, slot in self._slot_of.items() if slot in self._records}

    def _look(self, now: float) -> None:
        for record in self._records.values():
            if record.finished is None and record.series.due(now):
                record.series.add(now, split(record.counts, record.running))
        if self._series.due(now):
            self._series.add(now, split(self._totals(), self._running))
        if self._moved_over_time.due(now):
            self._moved_over_time.add(now, (self._moved.total,))
        self._workers.sample(now, now - self._looked_closely < LOOKS)

    def _look_up_running(self, now: float) -> None:
        """Count what workers have begun with, as their last heartbeats tell."""
        self._looked = now
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

    def _asked(self) -> float:
        now = self._clock()
        if self.failure is None:
            self._catch_up()
            if now - self._looked > _FRESH:
                self._look_up_running(now)
            self.sample(now)
        return now

    def _totals(self) -> list[int]:
        counts = list(self._others)
        for record in self._records.values():
            for code, count in enumerate(record.counts):
                counts[code] += count
        return counts

    def _record(self, graph: int | None) -> GraphRecord:
        """Return a record: of a graph by its number, else of the last one.

        Raises
        ------
        KeyError
            There is none.
        """
        records = list(self._records.values())
        if graph is None and records:
            return records[-1]
        for record in reversed(records):
            if record.number == graph:
                return record
        raise KeyError(f"there is no planned graph {'' if graph is None else graph}".rstrip())
