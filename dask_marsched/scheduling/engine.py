"""Makes the scheduler adapter's decisions by asking the policies: `PlacementEngine`.

A planned task is withheld until `Dispatcher` sends it; `TaskPlacement` chooses the worker of any
other ready task.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from distributed.scheduler import Scheduler, TaskState, WorkerState

from dask_marsched.config import Settings
from dask_marsched.core.plan import Unit, WorkerSlot
from dask_marsched.fallbacks.counters import Counters
from dask_marsched.fallbacks.guard import guarded
from dask_marsched.host.scheduler import snapshot, task_hints
from dask_marsched.host.scheduler.adapter import LEAVE_TO_DASK, WITHHOLD
from dask_marsched.monitoring.observer_hooks import OperandTracker
from dask_marsched.policies.planning.host_shares import Share
from dask_marsched.policies.retries import RetryRule
from dask_marsched.policies.sharing import LEAST_SHARED
from dask_marsched.policies.withholding import BINDING_BYTES
from dask_marsched.scheduling.chosen_policies import Policies
from dask_marsched.scheduling.dispatch_of_withheld import Dispatcher
from dask_marsched.scheduling.planner import Planner
from dask_marsched.scheduling.retries import Retries
from dask_marsched.scheduling.task_placement import TaskPlacement
from dask_marsched.scheduling.unneeded_replicas import UnneededReplicas

#: Seconds that operands of unknown duration wait behind others before they may be stolen.
_LONG_WAIT = 1.0


class PlacementEngine:
    """Decides where and when the tasks of one scheduler run."""

    def __init__(self, scheduler: Scheduler, policies: Policies, settings: Settings) -> None:
        self.scheduler: Any = scheduler
        self.policies = policies
        self.settings = settings
        self.counters = Counters()
        self.failure: str | None = None
        self.observer: OperandTracker | None = None
        self.planner = Planner(scheduler, policies, settings, self.counters, self.apply_units)
        self.replicas = UnneededReplicas()
        self.retries = Retries(scheduler, RetryRule(settings.retries, settings.retry_errors))
        #: By address, the order in which workers joined.
        self._joined: dict[str, int] = {}
        self._numbers = itertools.count()
        self._running: set[WorkerState] = set()
        self._placement = TaskPlacement(scheduler, policies, self._seniority, self._joined)
        self.dispatcher = Dispatcher(
            scheduler, policies.withholding, self.planner, self.counters, self._seniority
        )
        # the adapter's other hooks
        self.graph_arrives = self.planner.graph_arrives
        self.redispatch_after = self.dispatcher.redispatch_after

    def observe(self, observer: OperandTracker | None) -> None:
        """Report plans and transfers to an observer from now on."""
        self.observer = self.planner.observer = observer

    @guarded(dict)
    def hints_for(self, ts: TaskState) -> dict[str, Any]:
        """Return the hints that a worker gets with a task (see `task_hints.hints`)."""
        nbytes = self.planner.known_nbytes.get(ts.key) if self.settings.quota_enabled else None
        shared = (
            self.settings.store_shared
            and self._expected_nbytes(ts) >= LEAST_SHARED
            and snapshot.read_elsewhere(ts, self._expected_nbytes, self.policies.withholding.owner)
        )
        return task_hints.hints(nbytes, shared, suspicious=ts.prefix.suspicious > 0)

    def _expected_nbytes(self, ts: TaskState) -> float:
        """Return the known or expected bytes of a result, 0 if there is no estimate."""
        if ts.nbytes >= 0:
            return float(ts.nbytes)
        nbytes = self.planner.known_nbytes.get(ts.key)
        if nbytes is None:
            mean = snapshot.mean_nbytes(ts)
            return mean if math.isfinite(mean) else 0.0
        return float(nbytes)

    @guarded(lambda: True)
    def plan_prepared(self, touched: int, annotated: bool) -> bool:
        """Plan a graph as it was prepared (`Planner.plan_prepared`); False if that cannot be."""
        self.workers_changed()
        return self.planner.plan_prepared(touched, annotated)

    @guarded(lambda: None)
    def plan(self, wanted: Iterable[TaskState], touched: Iterable[TaskState] | None = None) -> None:
        """Plan the tasks that must run for the wanted ones."""
        self.workers_changed()
        self.planner.plan(wanted, touched)

    @guarded(lambda: None, fatal=True)
    def apply_units(
        self, tasks: list[TaskState], units: list[Unit], workers: list[WorkerSlot]
    ) -> None:
        """Hand the units of a plan for these workers to the withholding policy."""
        shares: dict[int, Share] = defaultdict(Share)
        for unit in units:
            members = [tasks[i] for i in unit.operands]
            first = min([ts.priority for ts in members if ts.priority])
            worker = None if unit.worker is None else workers[unit.worker].address
            share = None if unit.share is None else shares[unit.share]
            self.policies.withholding.plan(members, first, worker, share)

    @guarded(lambda: None)
    def finished(self, ts: TaskState) -> None:
        """Learn from a result, and record that its worker may have a free slot."""
        self.dispatcher.finished(ts)
        self.replicas.progressed(ts)
        self.retries.settled(ts)
        if self.planner.learn(ts):
            self.workers_changed()
            self.planner.plan_again()

    @guarded(lambda: None)
    def failed(self, ts: TaskState) -> None:
        """Forget the retries of a failed task: if its user retries it, counting begins anew."""
        self.retries.settled(ts)

    @guarded(lambda: None, fatal=True)
    def forgotten(self, ts: TaskState) -> None:
        """Drop a task that Dask has forgotten."""
        self.policies.withholding.forget(ts)
        self.planner.forget(ts)
        self.dispatcher.pace.forget(ts)
        self.retries.settled(ts)
        self.replicas.forget(ts)

    @guarded(lambda: None)
    def sent(self, ts: TaskState) -> None:
        """Note that a task was sent to a worker."""
        self.dispatcher.sent(ts)
        self.replicas.progressed(ts)

    @guarded(lambda: None)
    def copied(self, worker: str, keys: Iterable[Any]) -> None:
        """Note the results that a worker has fetched."""
        if self.observer is not None:
            self.observer.fetched(worker, keys)
        self.replicas.copied(map(self.scheduler.tasks.get, keys))

    @guarded(lambda: {})
    def superfluous(self) -> dict[WorkerState, list[TaskState]]:
        """Return the replicas to drop, by worker."""
        found = self.replicas.superfluous()
        self.counters.copies_dropped += sum(map(len, found.values()))
        return found

    @guarded(lambda: None, fatal=True)
    def workers_changed(self) -> None:
        """Plan again what was planned for workers that are gone, paused or retiring."""
        if self.scheduler.running == self._running:
            return
        running = set(self.scheduler.running)
        # Sorted by address, as the set has no order.
        for ws in sorted(running - self._running, key=lambda ws: ws.address):
            if ws.address not in self._joined:
                self._joined[ws.address] = next(self._numbers)
        for ws in self._running - running:
            self.policies.withholding.release(ws.address)
            self.dispatcher.free_slots.forget(ws)
        # A paused worker keeps its number.
        for address in [a for a in self._joined if a not in self.scheduler.workers]:
            del self._joined[address]
        self._running = running
        hosts = Counter(ws.host for ws in running)
        several = self._placement.several_to_a_host = 1 < len(hosts) < len(running)
        self.policies.withholding.locate({ws.address: ws.host for ws in running} if several else {})
        self.planner.set_workers([ws.address for ws in sorted(running, key=self._seniority)])

    @guarded(lambda: LEAVE_TO_DASK)
    def decide(self, ts: TaskState) -> WorkerState | str:
        """Return the worker for a ready task, `WITHHOLD` or `LEAVE_TO_DASK`."""
        if (reason := snapshot.restricted(ts)) is not None:
            return self._left_to_dask(reason)
        if not self.scheduler.running and not self._dask_queues(ts):
            return self._left_to_dask("no workers")  # it is kept among those that none can run
        if (ws := self.retries.elsewhere(ts)) is not None:
            return ws
        passes = False
        if self.policies.withholding.planned(ts):
            passes = self._passes_older_graph(ts)
            if not passes:
                return WITHHOLD
            self.planner.started(ts)
        if self.scheduler.is_rootish(ts) and not self.planner.is_piece(ts):
            ws = self.dispatcher.at_once(ts)
            if ws is None:
                return WITHHOLD
        elif ts.dependencies:
            ws = self._placement.worker_for(ts)
            if ws is None:
                return self._left_to_dask("inputs only on workers that are not running")
        elif self._less_urgent_than_withheld(ts):
            return WITHHOLD
        else:
            why = "beside an older graph" if passes else "graph of a single operand"
            return self._left_to_dask(why)
        self.counters.operands_placed += 1
        return ws

    def _left_to_dask(self, reason: str) -> str:
        self.counters.left_to_dask[reason] += 1
        return LEAVE_TO_DASK

    def _passes_older_graph(self, ts: TaskState) -> bool:
        """Whether a task need not wait for withheld ones of an older graph.

        Stock Dask queues only tasks of whose kind a graph has many. A few, as of somebody who tries
        something beside a long computation, run next.
        """
        queued = self.scheduler.queued
        if not queued or not ts.priority:
            return False
        first = queued.peek().priority
        older = first[0] == ts.priority[0] and first[1] < ts.priority[1]
        return older and not self.scheduler.is_rootish(ts)

    def _less_urgent_than_withheld(self, ts: TaskState) -> bool:
        """Whether a withheld task, which is sent later in this turn, has a higher user priority."""
        queued = self.scheduler.queued
        return bool(queued and ts.priority and queued.peek().priority[0] < ts.priority[0])

    def _dask_queues(self, ts: TaskState) -> bool:
        """Whether stock Dask would queue a task on the scheduler where no worker is free."""
        s = self.scheduler
        return not math.isinf(s.WORKER_SATURATION) and bool(s.is_rootish(ts))

    def _seniority(self, ws: WorkerState) -> int:
        return self._joined.get(ws.address, sys.maxsize)

    @guarded(lambda: None, fatal=True)
    def enqueued(self, ts: TaskState) -> None:
        """Withhold a task that went to the scheduler's queue."""
        bound_to = None
        if ts.dependencies:
            s = self.scheduler
            there = snapshot.held(snapshot.fetches(ts, len(s.running) or 1, s.bandwidth))
            best = min(there, key=lambda ws: (-there[ws], self._seniority(ws)), default=None)
            if best is not None and (
                there[best] >= BINDING_BYTES or snapshot.has_inputs_of_its_own(ts)
            ):
                bound_to = best.address
        self.policies.withholding.enqueue(ts, ts.priority or (), bound_to)

    @guarded(lambda: None, fatal=True)
    def dequeued(self, ts: TaskState) -> None:
        """Note that a task left the scheduler's queue."""
        self.policies.withholding.withdraw(ts)

    @guarded(lambda: None, fatal=True)
    def dispatch(self) -> list[tuple[TaskState, WorkerState]] | None:
        """Return the withheld tasks to send now, with their workers; None after a failure."""
        self.workers_changed()
        return self.dispatcher.dispatch()

    @guarded(lambda: True)
    def may_steal(self, ts: TaskState) -> bool:
        """Whether work stealing may move a task.

        While operands are withheld, an idle worker gets one of these instead. Only restricted tasks
        may be stolen then: the workers that they are allowed on may be unable to run any of them.
        Dask assumes a task of unknown duration to be long. Such a task stays with its inputs unless
        it would wait long behind others, which may even block until it has run.
        """
        if snapshot.restricted(ts):
            return True
        if len(self.policies.withholding):
            return False
        if not ts.dependencies or snapshot.duration(ts) is not None:
            return True
        ws = ts.processing_on
        fetching = ts.get_nbytes_deps() / self.scheduler.bandwidth
        return ws is not None and snapshot.busy_for(ws) >= max(_LONG_WAIT, 2 * fetching)

    @guarded(lambda: math.inf)
    def retry_after(self, ts: TaskState, worker: str, error: str) -> float:
        """Return after how many seconds to retry a failed task, infinity to let it fail."""
        seconds = self.retries.wait(ts, worker, error)
        self.counters.retried += math.isfinite(seconds)
        return seconds

    @guarded(lambda: None, last=True)
    def removed(self) -> None:
        """Drop all plans and stop searches, as the plugin has been removed."""
        self.planner.close()
        self.clear()

    def clear(self) -> None:
        """Drop all plans, as the scheduler restarts or the plugin has been removed."""
        self.planner.clear()
        self.dispatcher.clear()
        self.replicas.clear()
        self.retries.clear()
        for ts in list(self.scheduler.tasks.values()):
            self.policies.withholding.forget(ts)
