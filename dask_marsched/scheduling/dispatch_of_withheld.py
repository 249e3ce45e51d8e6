"""Sends withheld operands to workers with free slots: `Dispatcher`."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

from distributed.metrics import time
from distributed.scheduler import Scheduler, TaskState, WorkerState

from dask_marsched.fallbacks.counters import Counters
from dask_marsched.host.scheduler import snapshot
from dask_marsched.policies.dispatch_pace import ROUND_TRIP, DispatchPace
from dask_marsched.policies.slots import SlotRule
from dask_marsched.policies.withholding import Offer, WithholdingPolicy
from dask_marsched.scheduling.free_slots import FreeSlots, in_progress
from dask_marsched.scheduling.planner import Planner

Placed = list[tuple[TaskState, WorkerState]]


class Dispatcher:
    """Chooses workers with free slots, and what they get with the withholding policy."""

    def __init__(
        self,
        scheduler: Scheduler,
        withholding: WithholdingPolicy,
        planner: Planner,
        counters: Counters,
        seniority: Callable[[WorkerState], int],
    ) -> None:
        self.scheduler: Any = scheduler
        self.withholding = withholding
        self.planner = planner
        self.counters = counters
        self.seniority = seniority
        saturation = scheduler.WORKER_SATURATION
        self.slots = SlotRule(saturation=1.1 if math.isinf(saturation) else saturation)
        #: Of this dispatch: workers that were given nothing, with those for which they wait.
        self._awaited: dict[WorkerState, list[WorkerState]] = {}
        #: Of this dispatch: what `awaited_holders` found, as it is asked for each free worker.
        self._holders: dict[tuple[TaskState, ...], list[tuple[WorkerState, float]]] = {}
        #: Since when others wait for a worker that has ended no task in the meantime.
        self._awaited_since: dict[WorkerState, float] = {}
        self.clear()

    def sent(self, ts: TaskState) -> None:
        """Note that a task was sent to a worker."""
        self.pace.sent(ts, time())

    def finished(self, ts: TaskState) -> None:
        """Note that a task has a result, so that its worker may have a free slot."""
        for ws in ts.who_has or ():
            self.free_slots.finished[ws] = None
            self._awaited_since.pop(ws, None)
        self.pace.ended(ts, snapshot.duration(ts))

    def clear(self) -> None:
        """Forget slots and durations, as the scheduler restarts."""
        self.free_slots = FreeSlots(self.scheduler, self.slots, self.seniority)
        self.pace = DispatchPace()
        self._awaited_since.clear()

    def redispatch_after(self) -> float:
        """Return after how many seconds to dispatch again without an event, or infinity."""
        now = time()
        if self.pace.most(now) < self.scheduler.total_nthreads:
            return ROUND_TRIP
        waits = [t + snapshot.LONGEST_WAIT - now for t in self._awaited_since.values()]
        return min([seconds for seconds in waits if seconds > 0], default=math.inf)

    def dispatch(self) -> Placed:
        """Return the withheld tasks to send now, with their workers."""
        placed: Placed = []
        if len(self.withholding):
            now = time()
            if self.pace.most(now) < self.scheduler.total_nthreads:
                placed = self._paced(now)
            else:
                placed = self._evenly(self.free_slots.candidates(now))
            self._forget_ended_waits()
            self._end_mutual_waits(placed)
            self._holders.clear()
        self.free_slots.dispatched()
        return placed

    def _forget_ended_waits(self) -> None:
        for holder in [ws for ws in self._awaited_since if not in_progress(ws)]:
            if not any(holder in holders for holders in self._awaited.values()):
                del self._awaited_since[holder]

    def _end_mutual_waits(self, placed: Placed) -> None:
        """Place a task on each free worker that waits for workers with nothing to do.

        They wait for each other. No task would end, and only that leads to another dispatch.
        """
        at_work = {ws for _, ws in placed}
        awaited, self._awaited = self._awaited, {}
        for ws, holders in awaited.items():
            if any(in_progress(other) or other in at_work for other in holders):
                continue
            if ws in at_work or not self.free_slots.has_free_slot(ws):
                continue
            offer = self._offer(ws)
            if offer is not None:
                placed.append((self._accept(offer, ws), ws))
                at_work.add(ws)

    def at_once(self, ts: TaskState) -> WorkerState | None:
        """Return a worker with a free thread for a task without inputs, if nothing is withheld."""
        if ts.dependencies or len(self.withholding):
            return None
        if self.pace.most(time()) < self.scheduler.total_nthreads:
            return None
        return min(
            filter(self.free_slots.has_free_slot, self.scheduler.idle_task_count),
            key=lambda ws: (len(ws.processing) / ws.nthreads, self.seniority(ws)),
            default=None,
        )

    def _evenly(self, free: set[WorkerState]) -> Placed:
        """Fill the slots of workers in turns, with one task each, the least loaded first."""
        placed: Placed = []
        more: dict[WorkerState, dict[TaskState, float]] = {ws: {} for ws in free}
        turn = sorted(free, key=self.seniority)
        while turn:
            turn.sort(key=lambda ws: (len(ws.processing) + len(more[ws])) / ws.nthreads)
            still_free = []
            for ws in turn:
                offer = self._next(ws, more[ws])
                if offer is not None:
                    placed.append((self._accept(offer, ws), ws))
                    still_free.append(ws)
            turn = still_free
        return placed

    def _paced(self, now: float) -> Placed:
        """Fill one worker's slots after another's, until as many are in flight as the pace allows.

        Workers with an unfinished unit come first, so that its inputs are released, then those that
        have just finished a task, as they are sent messages anyway, then those with least stored
        bytes.
        """
        placed: Placed = []
        room = self.pace.room(now)
        if room <= 0:
            return placed
        filled: set[WorkerState] = set()
        for ws in self._turns(now):
            # A worker may come up twice, and `ws.processing` lacks the tasks of this dispatch.
            if ws in filled or not self.free_slots.has_free_slot(ws):
                continue
            filled.add(ws)
            more: dict[TaskState, float] = {}
            while len(placed) < room and (offer := self._next(ws, more)) is not None:
                placed.append((self._accept(offer, ws), ws))
            if len(placed) >= room or not len(self.withholding):
                break
        return placed

    def _turns(self, now: float) -> Iterator[WorkerState]:
        yield from filter(None, map(self.scheduler.workers.get, self.withholding.begun()))
        yield from sorted(self.free_slots.finished, key=self._load)
        yield from sorted(self.free_slots.candidates(now), key=self._load)

    def _load(self, ws: WorkerState) -> tuple[int, int]:
        return ws.nbytes, self.seniority(ws)

    def _accept(self, offer: Offer, ws: WorkerState) -> TaskState:
        ts: TaskState = offer.operand
        self.withholding.accept(offer, ws.address)
        self.planner.started(ts)
        self.counters.withheld[offer.how] += 1
        self.counters.operands_placed += 1
        return ts

    def _offer(self, ws: WorkerState) -> Offer | None:
        return self.withholding.offer(ws.address, lambda ts, _: snapshot.input_bytes_on(ts, ws))

    def _next(self, ws: WorkerState, more: dict[TaskState, float]) -> Offer | None:
        """Return the next task for a worker, None if it has no slot for one.

        `more` holds the expected durations of the tasks that it got in this dispatch already.
        """
        having = in_progress(ws) + len(more)
        free = self.slots.has_free_slot(ws.nthreads, having)
        backlog = 0.0 if free else ws.occupancy + sum(more.values())
        ahead = bool(self.planner.tiled) and self.slots.may_fetch(ws.nthreads, having)
        if not free and not ahead and self.slots.is_full(ws.nthreads, having, backlog):
            return None  # the frequent case, checked before the expensive search for an offer
        offer = self._offer(ws)
        if offer is None:
            return None
        bound_alike = self.withholding.bound_alike
        holders = snapshot.awaited_holders(offer.operand, ws, bound_alike, self._holders)
        if awaited := self._not_late(holders):
            self._awaited[ws] = awaited
            return None
        duration = snapshot.duration(offer.operand)
        if not free:
            admitted = self.slots.admits(
                ws.nthreads,
                having,
                duration,
                backlog,
                snapshot.mean_nbytes(offer.operand),
                read=bool(offer.operand.dependents),
            )
            ahead = ahead and offer.how == "own" and offer.operand in self.planner.tiled
            if not admitted and not ahead and not self._may_wait(ws, having, more, offer.operand):
                return None
        more[offer.operand] = duration or 0.0
        return offer

    def _not_late(self, holders: list[WorkerState]) -> list[WorkerState]:
        """Leave out the holders that have been waited for longer than `LONGEST_WAIT` seconds.

        They may run a task that takes far longer than its kind.
        """
        if not holders:
            return holders
        now = time()
        since = self._awaited_since
        return [ws for ws in holders if now - since.setdefault(ws, now) < snapshot.LONGEST_WAIT]

    def _may_wait(
        self, ws: WorkerState, having: int, more: Collection[TaskState], ts: TaskState
    ) -> bool:
        """Whether a task may wait on a worker whose threads are all busy."""
        if not ts.dependents or not self.slots.may_wait(ws.nthreads, having):
            return False  # a final result makes no other task ready
        here, everywhere = snapshot.input_bytes_on(ts, ws)
        # A task with inputs to fetch is left for a worker that may hold them.
        return here == everywhere and not snapshot.releases_work(ws, more)
