"""The placement engine: snapshots in, policies' decisions out.

It is the `Brain` of a `dask_marsched.host.scheduler.SchedulerAdapter`. What is decided, the
policies decide; when and by whom it is carried out is the adapter's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from distributed.scheduler import Scheduler, TaskState, WorkerState

from dask_marsched.config import Settings
from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.plan import Unit
from dask_marsched.core.size_model import SizeModel, kinds
from dask_marsched.counters import Counters
from dask_marsched.host import snapshot
from dask_marsched.host.scheduler import LEAVE_TO_DASK, WITHHOLD
from dask_marsched.policies.assignment import AssignmentPolicy
from dask_marsched.policies.ordering import OrderingPolicy
from dask_marsched.policies.placement import PlacementPolicy
from dask_marsched.policies.slots import SlotRule
from dask_marsched.policies.withholding import Offer, WithholdingPolicy

#: Idle workers that are looked at in place of one that has the inputs but is busy.
_MOST_SPARES = 8

P = ParamSpec("P")
R = TypeVar("R")


def _guarded(
    default: Callable[[], Any],
) -> Callable[
    [Callable[Concatenate[PlacementEngine, P], R]], Callable[Concatenate[PlacementEngine, P], R]
]:
    """Let no exception out of a hook: count it, and return what leaves the decision to Dask."""

    def decorate(
        hook: Callable[Concatenate[PlacementEngine, P], R],
    ) -> Callable[Concatenate[PlacementEngine, P], R]:
        @wraps(hook)
        def guarded(self: PlacementEngine, *args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return hook(self, *args, **kwargs)
            except Exception as error:
                self.counters.caught(hook.__name__, error)
                return default()  # type: ignore[no-any-return]

        return guarded

    return decorate


@dataclass(frozen=True)
class Policies:
    """The policies in force."""

    assignment: AssignmentPolicy
    ordering: OrderingPolicy
    placement: PlacementPolicy
    withholding: WithholdingPolicy

    def names(self) -> dict[str, str]:
        """Return the policies' names by kind."""
        return {
            kind: getattr(self, kind).name
            for kind in ("assignment", "ordering", "placement", "withholding")
        }


@dataclass(eq=False)
class _Plan:
    """A plan that may be made again: sizes are being learned, or its units have workers.

    `unstarted` holds its initial operands that have not been sent to a worker yet; the plan is
    dropped with the last of them.
    """

    graph: OperandGraph
    tasks: list[TaskState]
    guessed: dict[int, Any]
    bound_to_workers: bool
    unstarted: dict[TaskState, int] = field(default_factory=dict)


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
        saturation = scheduler.WORKER_SATURATION
        self.slots = SlotRule(
            settings.short_task,
            settings.horizon,
            settings.horizon_bytes,
            1.1 if math.isinf(saturation) else saturation,
        )
        self._sizes: Any = None
        self._model = SizeModel()
        self._unlearned: dict[TaskState, Any] = {}
        self._plans: dict[_Plan, None] = {}
        self._plan_of: dict[TaskState, _Plan] = {}
        self._new_kinds = False
        self._next_replan = self._observed = 0
        self._joined: dict[str, int] = {}
        self._running: set[WorkerState] = set()
        self._finished: dict[WorkerState, None] = {}

    # -- graphs ----------------------------------------------------------------------------

    def graph_arrives(self, sizes: Any) -> None:
        """Keep the sizes that came with a graph until its tasks are there."""
        self._sizes = sizes if self.settings.known_sizes else None

    @_guarded(lambda: None)
    def plan(self, wanted: Iterable[TaskState]) -> None:
        """Plan the tasks that must run for the wanted ones."""
        sizes, self._sizes = self._sizes, None
        tasks = snapshot.tasks_to_compute(wanted)
        if len(tasks) < 2:
            self.counters.left_to_dask["graph of a single operand"] += len(tasks)
            return
        guessed: dict[int, Any] = {}
        graph = self._graph(tasks, sizes, guessed)
        self._order(graph, tasks)
        planned = self.policies.withholding.planned
        fresh = {
            i for i, ts in enumerate(tasks) if not planned(ts) and not snapshot.restricted(ts)
        }
        units = self._assign(graph, tasks, fresh)
        self._install(tasks, units)
        self.counters.graphs_planned += 1
        self.counters.operands_planned += len(tasks)
        bound = any(unit.worker is not None for unit in units)
        learning = bool(guessed) and self.settings.learn_sizes
        if bound or learning:
            plan = _Plan(graph, tasks, guessed, bound)
            plan.unstarted = {tasks[i]: i for unit in units for i in unit.operands}
            self._plans[plan] = None
            self._plan_of.update(dict.fromkeys(plan.unstarted, plan))
            if learning:
                self._unlearned.update((tasks[i], of) for i, of in guessed.items())
                self._next_replan = self._observed + max(4, 2 * len(self._running))

    def _graph(
        self, tasks: list[TaskState], sizes: Any, guessed: dict[int, Any]
    ) -> OperandGraph:
        exact = sizes.exact if sizes is not None else {}
        estimated = sizes.estimated if sizes is not None else {}
        known_total = known_count = 0.0
        position = iter(range(len(tasks)))
        exactly = 0

        def nbytes(ts: TaskState) -> tuple[float, bool]:
            nonlocal known_total, known_count, exactly
            i = next(position)
            size = exact.get(ts.key)
            if size is not None:
                exactly += 1
            else:
                size = estimated.get(ts.key)
            if size is None:
                key = ts.key
                index = key[1:] if isinstance(key, tuple) else ()
                of = kinds(ts.group.name, len(ts.dependencies), len(ts.dependents), index)
                guessed[i] = of
                size = self._model.predict(of)
            if size is None:
                return -1.0, False
            known_total += size
            known_count += 1
            return float(size), True

        numbers = {address: n for n, address in enumerate(self._addresses())}
        graph = snapshot.operand_graph(tasks, nbytes, numbers)
        self.counters.exact_sizes += exactly
        if known_count == len(tasks):
            return graph
        # An operand of unknown size counts as an average one.
        mean = known_total / known_count if known_count else 1.0
        return graph.with_nbytes([mean if b < 0 else b for b in graph.nbytes], graph.known)

    def _order(self, graph: OperandGraph, tasks: list[TaskState]) -> None:
        order = self.policies.ordering.order(graph)
        if order is None:
            return
        for rank, i in enumerate(order):
            ts = tasks[i]
            if ts.state == "released" and ts.priority:
                ts.priority = (*ts.priority[:-1], rank)

    def _addresses(self) -> list[str]:
        return sorted(
            (ws.address for ws in self.scheduler.running), key=lambda a: self._joined.get(a, 0)
        )

    def _assign(
        self, graph: OperandGraph, tasks: list[TaskState], pending: Iterable[int]
    ) -> list[Unit]:
        chosen = pending if isinstance(pending, set) else set(pending)
        addresses = self._addresses()
        bound: dict[str, int] = {}
        for i in graph:
            if not graph.inputs[i] and i not in chosen:
                ws = tasks[i].processing_on or next(iter(tasks[i].who_has or ()), None)
                if ws is not None:
                    bound[ws.address] = bound.get(ws.address, 0) + 1
        slots = snapshot.worker_slots((self.scheduler.workers[a] for a in addresses), bound)
        return self.policies.assignment.assign(graph, slots, chosen)

    def _install(self, tasks: list[TaskState], units: list[Unit]) -> None:
        addresses = self._addresses()
        for unit in units:
            members = [tasks[i] for i in unit.operands]
            first = min(ts.priority for ts in members if ts.priority)
            worker = None if unit.worker is None else addresses[unit.worker]
            self.policies.withholding.plan(members, first, worker)

    # -- learning and planning again -------------------------------------------------------

    @_guarded(lambda: None)
    def finished(self, ts: TaskState) -> None:
        """Learn from a result, and remember that its worker has a slot again."""
        for ws in ts.who_has or ():
            self._finished[ws] = None
        of = self._unlearned.pop(ts, None)
        if of is None:
            return
        self._observed += 1
        if self._model.observe(of, ts.get_nbytes()):
            self._new_kinds = True
        if self._new_kinds and self._observed >= self._next_replan:
            self._new_kinds = False
            self._next_replan = 2 * self._observed
            for plan in [p for p in self._plans if p.guessed]:
                self._replan(plan)

    def _replan(self, plan: _Plan) -> None:
        """Plan again the units that no worker has begun with."""
        graph = plan.graph
        if plan.guessed:
            nbytes, known = list(graph.nbytes), bytearray(graph.known)
            for i, of in plan.guessed.items():
                size = self._model.predict(of)
                if size is not None:
                    nbytes[i], known[i] = size, 1
            graph = plan.graph = graph.with_nbytes(nbytes, bytes(known))
        opened = self.policies.withholding.opened
        pending = {
            i for ts, i in plan.unstarted.items() if plan.bound_to_workers or not opened(ts)
        }
        if pending:
            self._install(plan.tasks, self._assign(graph, plan.tasks, pending))
            self.counters.replanned += 1

    def _started(self, ts: TaskState) -> None:
        plan = self._plan_of.pop(ts, None)
        if plan is not None:
            del plan.unstarted[ts]
            if not plan.unstarted:
                self._plans.pop(plan, None)

    @_guarded(lambda: None)
    def forgotten(self, ts: TaskState) -> None:
        """Drop a task that Dask has forgotten."""
        self.policies.withholding.forget(ts)
        self._unlearned.pop(ts, None)
        self._started(ts)

    # -- workers ---------------------------------------------------------------------------

    @_guarded(lambda: None)
    def workers_changed(self) -> None:
        """Spread again what was planned for workers that are gone, paused or retiring."""
        running = set(self.scheduler.running)
        if running == self._running:
            return
        for ws in running - self._running:
            self._joined.setdefault(ws.address, len(self._joined))
        for ws in self._running - running:
            self.policies.withholding.release(ws.address)
            self._finished.pop(ws, None)
        self._running = running
        for plan in [p for p in self._plans if p.bound_to_workers]:
            self._replan(plan)

    # -- decisions (the adapter's `Brain`) --------------------------------------------------

    @_guarded(lambda: LEAVE_TO_DASK)
    def decide(self, ts: TaskState) -> WorkerState | str:
        """Return the worker for a ready task, `WITHHOLD` or `LEAVE_TO_DASK`."""
        reason = snapshot.restricted(ts)
        if reason is None:
            if self.policies.withholding.planned(ts):
                return WITHHOLD
            if self.scheduler.is_rootish(ts):
                return WITHHOLD
            if ts.dependencies:
                ws = self._most_suitable(ts)
                if ws is not None:
                    self.counters.operands_placed += 1
                    return ws
                reason = "inputs only on workers that are not running"
            else:
                reason = "graph of a single operand"
        self.counters.left_to_dask[reason] += 1
        return LEAVE_TO_DASK

    def _most_suitable(self, ts: TaskState) -> WorkerState | None:
        s = self.scheduler
        there = snapshot.input_bytes(ts)
        if len(there) > 1:
            there = {ws: there[ws] for ws in sorted(there, key=self._seniority)}
        holders = [ws for ws in there if ws in s.running]
        if not holders:
            return None
        if len(holders) == 1:
            ws = holders[0]
        else:
            candidates = [snapshot.candidate(ws, there[ws]) for ws in holders]
            ws = holders[self.policies.placement.choose(candidates)]
        if s.idle and not len(self.policies.withholding) and ws.processing:
            return self._spare(ts, ws, there) or ws
        return ws

    def _spare(
        self, ts: TaskState, chosen: WorkerState, there: dict[WorkerState, int]
    ) -> WorkerState | None:
        """Return an idle worker that would start a task earlier than the chosen one."""
        if len(chosen.processing) < chosen.nthreads or snapshot.duration(ts) is None:
            return None
        idle = [ws for ws in self.scheduler.idle.values() if not ws.processing]
        if not idle:
            return None
        idle = sorted(idle, key=lambda ws: (-there.get(ws, 0), self._seniority(ws)))[:_MOST_SPARES]
        total = float(sum(dts.get_nbytes() for dts in ts.dependencies))
        index = self.policies.placement.spare(
            snapshot.candidate(chosen, total, backlog=True),
            [snapshot.candidate(ws, there.get(ws, 0), backlog=True) for ws in idle],
            self.scheduler.bandwidth,
        )
        return None if index is None else idle[index]

    def _seniority(self, ws: WorkerState) -> int:
        return self._joined.get(ws.address, len(self._joined))

    @_guarded(lambda: None)
    def enqueued(self, ts: TaskState) -> None:
        """Withhold a task that went to the scheduler's queue."""
        home = None
        if ts.dependencies:
            there = snapshot.input_bytes(ts)
            best = min(there, key=lambda ws: (-there[ws], self._seniority(ws)), default=None)
            home = best.address if best is not None else None
        self.policies.withholding.enqueue(ts, ts.priority or (), home)

    @_guarded(lambda: None)
    def dequeued(self, ts: TaskState) -> None:
        """Take note that a task left the scheduler's queue."""
        self.policies.withholding.withdraw(ts)

    @_guarded(lambda: None)
    def dispatch(self) -> list[tuple[TaskState, WorkerState]] | None:
        """Return which withheld tasks go to which workers now."""
        self.workers_changed()
        s = self.scheduler
        free = set(s.idle_task_count)
        free.update(ws for ws in self._finished if ws in s.running)
        self._finished.clear()
        placed: list[tuple[TaskState, WorkerState]] = []
        more: dict[WorkerState, list[float]] = {ws: [] for ws in free}
        turn = sorted(free, key=self._seniority)
        while turn:
            turn.sort(key=lambda ws: (len(ws.processing) + len(more[ws])) / ws.nthreads)
            still_free = []
            for ws in turn:
                offer = self._next(ws, more[ws])
                if offer is None:
                    continue
                self.policies.withholding.accept(offer, ws.address)
                self._started(offer.operand)
                self.counters.withheld[offer.how] += 1
                self.counters.operands_placed += 1
                placed.append((offer.operand, ws))
                still_free.append(ws)
            turn = still_free
        return placed

    def _next(self, ws: WorkerState, more: list[float]) -> Offer | None:
        """Return what a worker runs next, None if it has no slot for it.

        `more` holds the expected durations of what it got in this dispatch already.
        """
        offer = self.policies.withholding.offer(
            ws.address,
            lambda ts, _: snapshot.input_bytes_on(ts, ws),
        )
        if offer is None:
            return None
        in_progress = len(ws.processing) - len(ws.long_running) + len(more)
        duration = snapshot.duration(offer.operand)
        if in_progress >= ws.nthreads:
            admitted = duration is not None and self.slots.admits(
                ws.nthreads,
                in_progress,
                duration,
                ws.occupancy + sum(more),
                snapshot.mean_nbytes(offer.operand),
            )
            if not admitted:
                return None
        more.append(duration or 0.0)
        return offer

    @_guarded(lambda: True)
    def may_steal(self, ts: TaskState) -> bool:
        """Whether work stealing may move a task.

        While operands are withheld, a worker with nothing to do is given one of those instead.
        A task of unknown duration stays with its inputs: Dask would take it for a long one.
        """
        if not self.settings.steal_protection:
            return True
        if len(self.policies.withholding):
            return False
        return not ts.dependencies or snapshot.duration(ts) is not None

    def removed(self) -> None:
        """Drop everything: the plugin has been removed."""
        self.clear()

    def clear(self) -> None:
        """Drop all plans: the scheduler restarts, or the plugin has been removed."""
        withholding = self.policies.withholding
        for ts in list(self.scheduler.tasks.values()):
            withholding.forget(ts)
        self._plans.clear()
        self._plan_of.clear()
        self._unlearned.clear()
        self._finished.clear()
