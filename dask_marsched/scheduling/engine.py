"""The placement engine: snapshots in, policies' decisions out.

It is the `Brain` of a `dask_marsched.host.scheduler.adapter.SchedulerAdapter`. What is decided, the
policies decide; when and by whom it is carried out is the adapter's business.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from typing import Any

from distributed.metrics import time
from distributed.scheduler import Scheduler, TaskState, WorkerState

from dask_marsched.config import Settings
from dask_marsched.core.plan import Unit
from dask_marsched.fallbacks.counters import Counters
from dask_marsched.fallbacks.guard import guarded
from dask_marsched.host.scheduler import snapshot, task_hints
from dask_marsched.host.scheduler.adapter import LEAVE_TO_DASK, WITHHOLD
from dask_marsched.monitoring.observer_hooks import Following
from dask_marsched.policies.dispatch_pace import ROUND_TRIP, DispatchPace
from dask_marsched.policies.planning.host_shares import Share
from dask_marsched.policies.retries import RetryRule
from dask_marsched.policies.sharing import LEAST_SHARED
from dask_marsched.policies.slots import SlotRule
from dask_marsched.policies.withholding import Offer
from dask_marsched.scheduling.free_slots import Vacancies, in_progress
from dask_marsched.scheduling.placement import Suitability
from dask_marsched.scheduling.planner import Planner, Policies
from dask_marsched.scheduling.retries import Retries
from dask_marsched.scheduling.unneeded_replicas import Replicas

#: Bytes of inputs from which on a withheld operand has a home. Less is fetched in the time of a
#: message; the array object that all the sources of a Zarr store read is the common case.
_WORTH_STAYING_FOR = 64 * 2**10

#: Seconds that operands of unknown duration stay behind others with their inputs.
_LONG = 1.0


class PlacementEngine:
    """Decides where and when the tasks of one scheduler run.

    Parameters
    ----------
    scheduler
        The scheduler, read only.
    policies
        What decides.
    settings
        Thresholds.
    """

    def __init__(self, scheduler: Scheduler, policies: Policies, settings: Settings) -> None:
        self.scheduler: Any = scheduler
        self.policies = policies
        self.settings = settings
        self.counters = Counters()
        self.failure: str | None = None
        self.observer: Following | None = None
        saturation = scheduler.WORKER_SATURATION
        self.slots = SlotRule(saturation=1.1 if math.isinf(saturation) else saturation)
        self.pace = DispatchPace()
        self.planner = Planner(scheduler, policies, settings, self.counters, self.install)
        self.replicas = Replicas()
        self.retries = Retries(scheduler, RetryRule(settings.retries, settings.retry_errors))
        self._joined: dict[str, int] = {}
        self._numbers = itertools.count()
        self._running: set[WorkerState] = set()
        self._suitability = Suitability(scheduler, policies, self._seniority)
        self.vacancies = Vacancies(scheduler, self.slots, self._seniority)

    def observe(self, observer: Following | None) -> None:
        """Tell an observer of what is planned and fetched."""
        self.observer = self.planner.observer = observer

    # -- graphs and results ----------------------------------------------------------------

    def graph_arrives(self, sizes: Any) -> None:
        """Keep the sizes that came with a graph until its tasks are there."""
        self.planner.graph_arrives(sizes)

    @guarded(dict)
    def foresee(self, ts: TaskState) -> dict[str, Any]:
        """Return what a worker is told of a task's future."""
        nbytes = self.planner.known_nbytes(ts) if self.settings.quota_enabled else None
        shared = (
            self.settings.store_shared
            and self._expected_nbytes(ts) >= LEAST_SHARED
            and snapshot.read_elsewhere(ts, self._expected_nbytes, self.policies.withholding.owner)
        )
        return task_hints.told(nbytes, shared)

    def _expected_nbytes(self, ts: TaskState) -> float:
        """Return the size of a result, known or expected, bytes; 0 where nothing is."""
        if ts.nbytes >= 0:
            return float(ts.nbytes)
        nbytes = self.planner.known_nbytes(ts)
        if nbytes is None:
            mean = snapshot.mean_nbytes(ts)
            return mean if math.isfinite(mean) else 0.0
        return float(nbytes)

    @guarded(lambda: None)
    def plan(self, wanted: Iterable[TaskState], touched: Iterable[TaskState] | None = None) -> None:
        """Plan what must run for the wanted tasks."""
        self.workers_changed()
        self.planner.plan(wanted, touched)

    @guarded(lambda: None, fatal=True)
    def install(self, tasks: list[TaskState], units: list[Unit]) -> None:
        """Put a plan in force."""
        shares: dict[int, Share] = defaultdict(Share)
        for unit in units:
            members = [tasks[i] for i in unit.operands]
            first = min(ts.priority for ts in members if ts.priority)
            worker = None if unit.worker is None else self.planner.workers[unit.worker]
            share = None if unit.share is None else shares[unit.share]
            self.policies.withholding.plan(members, first, worker, share)

    @guarded(lambda: None)
    def finished(self, ts: TaskState) -> None:
        """Learn from a result, and remember that its worker has a slot again."""
        for ws in ts.who_has or ():
            self.vacancies.finished[ws] = None
        self.pace.ended(ts, snapshot.duration(ts))
        self.replicas.progressed(ts)
        self.retries.settled(ts)
        if self.planner.learn(ts):
            self.workers_changed()
            self.planner.plan_again()

    @guarded(lambda: None)
    def failed(self, ts: TaskState) -> None:
        """Forget how often a task was tried: where its user has it tried again, that is anew."""
        self.retries.settled(ts)

    @guarded(lambda: None, fatal=True)
    def forgotten(self, ts: TaskState) -> None:
        """Drop a task that Dask has forgotten."""
        self.policies.withholding.forget(ts)
        self.planner.forget(ts)
        self.pace.forget(ts)
        self.retries.settled(ts)
        self.replicas.forget(ts)

    @guarded(lambda: None)
    def sent(self, ts: TaskState) -> None:
        """Take note of a task that was sent to a worker."""
        self.pace.sent(ts, time())
        self.replicas.progressed(ts)

    @guarded(lambda: None)
    def copied(self, worker: str, keys: Iterable[Any]) -> None:
        """Take note of results that a worker has fetched."""
        if self.observer is not None:
            self.observer.fetched(worker, keys)
        self.replicas.copied(map(self.scheduler.tasks.get, keys))

    @guarded(lambda: {})
    def superfluous(self) -> dict[WorkerState, list[TaskState]]:
        """Return the copies to be dropped, by worker."""
        found = self.replicas.superfluous()
        self.counters.copies_dropped += sum(map(len, found.values()))
        return found

    # -- workers ---------------------------------------------------------------------------

    @guarded(lambda: None, fatal=True)
    def workers_changed(self) -> None:
        """Spread again what was planned for workers that are gone, paused or retiring."""
        if self.scheduler.running == self._running:
            return
        running = set(self.scheduler.running)
        # Sorted: several that come at once come in no particular order.
        for ws in sorted(running - self._running, key=lambda ws: ws.address):
            if ws.address not in self._joined:
                self._joined[ws.address] = next(self._numbers)
        for ws in self._running - running:
            self.policies.withholding.release(ws.address)
            self.vacancies.left(ws)
        # One that is paused keeps its number for when it comes back.
        for address in [a for a in self._joined if a not in self.scheduler.workers]:
            del self._joined[address]
        self._running = running
        hosts = Counter(ws.host for ws in running)
        several = self._suitability.several_to_a_host = 1 < len(hosts) < len(running)
        self.policies.withholding.locate({ws.address: ws.host for ws in running} if several else {})
        self.planner.spread_again([ws.address for ws in sorted(running, key=self._seniority)])

    # -- decisions (the adapter's `Brain`) --------------------------------------------------

    @guarded(lambda: LEAVE_TO_DASK)
    def decide(self, ts: TaskState) -> WorkerState | str:
        """Return the worker for a ready task, `WITHHOLD` or `LEAVE_TO_DASK`."""
        reason = snapshot.restricted(ts) if self.failure is None else "withholding failed"
        if reason is None and (ws := self.retries.elsewhere(ts)) is not None:
            return ws
        if reason is None:
            if self.policies.withholding.planned(ts):
                return WITHHOLD
            if self.scheduler.is_rootish(ts) and not self.planner.is_piece(ts):
                return WITHHOLD
            if ts.dependencies:
                ws = self._suitability.most_suitable(ts)
                if ws is not None:
                    self.counters.operands_placed += 1
                    return ws
                reason = "inputs only on workers that are not running"
            else:
                reason = "graph of a single operand"
        self.counters.left_to_dask[reason] += 1
        return LEAVE_TO_DASK

    def _seniority(self, ws: WorkerState) -> int:
        return self._joined.get(ws.address, sys.maxsize)

    @guarded(lambda: None, fatal=True)
    def enqueued(self, ts: TaskState) -> None:
        """Withhold a task that went to the scheduler's queue."""
        home = None
        if ts.dependencies:
            s = self.scheduler
            there = snapshot.held(snapshot.fetches(ts, len(s.running) or 1, s.bandwidth))
            best = min(there, key=lambda ws: (-there[ws], self._seniority(ws)), default=None)
            if best is not None and there[best] >= _WORTH_STAYING_FOR:
                home = best.address
        self.policies.withholding.enqueue(ts, ts.priority or (), home)

    @guarded(lambda: None, fatal=True)
    def dequeued(self, ts: TaskState) -> None:
        """Take note that a task left the scheduler's queue."""
        self.policies.withholding.withdraw(ts)

    @guarded(lambda: None, fatal=True)
    def dispatch(self) -> list[tuple[TaskState, WorkerState]] | None:
        """Return which withheld tasks go to which workers now."""
        self.workers_changed()
        placed: list[tuple[TaskState, WorkerState]] = []
        if len(self.policies.withholding):
            now = time()
            if self.pace.most(now) < self.scheduler.total_nthreads:
                placed = self._paced(now)
            else:
                placed = self._evenly(self.vacancies.look(now))
        self.vacancies.told()
        return placed

    def _evenly(self, free: set[WorkerState]) -> list[tuple[TaskState, WorkerState]]:
        """Give workers what they have slots for, each one more in turn."""
        placed: list[tuple[TaskState, WorkerState]] = []
        more: dict[WorkerState, dict[TaskState, float]] = {ws: {} for ws in free}
        turn = sorted(free, key=self._seniority)
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

    def _paced(self, now: float) -> list[tuple[TaskState, WorkerState]]:
        """Give workers with a free thread all that they have slots for, one after the other.

        Those in the middle of a unit come first, the most urgent before: a sum waits for the last
        of its inputs, and the others with it. Then those that have just finished something, for
        they are sent messages anyway, then those that hold least, so that not a few hold all.
        """
        placed: list[tuple[TaskState, WorkerState]] = []
        room = self.pace.room(now)
        if room <= 0:
            return placed
        get, withholding = self.scheduler.workers.get, self.policies.withholding
        self._fill(filter(None, map(get, withholding.begun())), room, placed)
        if len(placed) < room and len(withholding):
            self._fill(sorted(self.vacancies.finished, key=self._load), room, placed)
        if len(placed) < room and len(withholding):
            self._fill(sorted(self.vacancies.look(now), key=self._load), room, placed)
        return placed

    def _load(self, ws: WorkerState) -> tuple[int, int]:
        return ws.nbytes, self._seniority(ws)

    def _fill(
        self,
        turn: Iterable[WorkerState],
        room: float,
        placed: list[tuple[TaskState, WorkerState]],
    ) -> None:
        for ws in turn:
            if len(placed) >= room:
                return
            if not self.vacancies.has_free_thread(ws):
                continue
            more: dict[TaskState, float] = {}
            while len(placed) < room and (offer := self._next(ws, more)) is not None:
                placed.append((self._accept(offer, ws), ws))

    def _accept(self, offer: Offer, ws: WorkerState) -> TaskState:
        ts: TaskState = offer.operand
        self.policies.withholding.accept(offer, ws.address)
        self.planner.started(ts)
        self.counters.withheld[offer.how] += 1
        self.counters.operands_placed += 1
        return ts

    def overdue(self) -> float:
        """Return after how many seconds to look again for what may be sent, infinity for never."""
        return ROUND_TRIP if self.pace.most(time()) < self.scheduler.total_nthreads else math.inf

    def _next(self, ws: WorkerState, more: dict[TaskState, float]) -> Offer | None:
        """Return what a worker runs next, None if it has no slot for it.

        `more` holds what it got in this dispatch already, and the expected durations.
        """
        having = in_progress(ws) + len(more)
        backlog = ws.occupancy + sum(more.values())
        ahead = self.planner.has_tiles and self.slots.may_fetch(ws.nthreads, having)
        if not ahead and self.slots.is_full(ws.nthreads, having, backlog):
            return None  # the frequent case: to look for an offer takes longer
        offer = self.policies.withholding.offer(
            ws.address,
            lambda ts, _: snapshot.input_bytes_on(ts, ws),
        )
        if offer is None:
            return None
        duration = snapshot.duration(offer.operand)
        if not self.slots.has_free_thread(ws.nthreads, having):
            admitted = self.slots.admits(
                ws.nthreads,
                having,
                duration,
                backlog,
                snapshot.mean_nbytes(offer.operand),
                read=bool(offer.operand.dependents),
            )
            ahead = ahead and offer.how == "own" and self.planner.in_tile(offer.operand)
            if not admitted and not ahead and not self._may_wait(ws, having, more, offer.operand):
                return None
        more[offer.operand] = duration or 0.0
        return offer

    def _may_wait(
        self, ws: WorkerState, having: int, more: Collection[TaskState], ts: TaskState
    ) -> bool:
        """Whether a task may wait on a worker whose threads are all busy."""
        if not ts.dependents or not self.slots.may_wait(ws.nthreads, having):
            return False  # what nobody reads is no start of anything
        here, everywhere = snapshot.input_bytes_on(ts, ws)
        # One that has to fetch is left for a worker that may not have to.
        return here == everywhere and not snapshot.releases_work(ws, more)

    @guarded(lambda: True)
    def may_steal(self, ts: TaskState) -> bool:
        """Whether work stealing may move a task.

        While operands are withheld, a worker with nothing to do is given one of those instead.
        None of those may be where a task is bound to be, though. A task of unknown duration stays
        with its inputs: Dask would take it for a long one. But not for long behind others: these
        may be long ones, or even wait for it.
        """
        if snapshot.restricted(ts):
            return True
        if len(self.policies.withholding):
            return False
        if not ts.dependencies or snapshot.duration(ts) is not None:
            return True
        ws = ts.processing_on
        fetching = ts.get_nbytes_deps() / self.scheduler.bandwidth
        return ws is not None and snapshot.busy_for(ws) >= max(_LONG, 2 * fetching)

    @guarded(lambda: math.inf)
    def retry_after(self, ts: TaskState, worker: str, error: str) -> float:
        """Return after how many seconds to try a failed task again, infinity to let it fail."""
        seconds = self.retries.wait(ts, worker, error)
        self.counters.retried += math.isfinite(seconds)
        return seconds

    @guarded(lambda: None)
    def removed(self) -> None:
        """Drop everything: the plugin has been removed."""
        self.planner.close()
        self.clear()

    def clear(self) -> None:
        """Drop all plans: the scheduler restarts, or the plugin has been removed."""
        self.planner.clear()
        self.vacancies.clear()
        self.pace.clear()
        self.replicas.clear()
        self.retries.clear()
        for ts in list(self.scheduler.tasks.values()):
            self.policies.withholding.forget(ts)
