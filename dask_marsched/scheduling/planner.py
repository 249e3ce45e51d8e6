"""Plans each graph when it arrives, and again when sizes are learned or far more workers run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dask.typing import Key
from distributed.scheduler import Scheduler, TaskState

from dask_marsched.config import Settings
from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.graph_record import GraphArrays
from dask_marsched.core.plan import Unit, WorkerSlot
from dask_marsched.core.roles import cut_up_operands
from dask_marsched.core.size_model import SizeModel, kinds, with_averages
from dask_marsched.fallbacks.counters import Counters
from dask_marsched.host.graph.result_sizes import ChunkSizes
from dask_marsched.host.scheduler import snapshot
from dask_marsched.monitoring.observer_hooks import OperandTracker
from dask_marsched.policies.assignment import pending_units
from dask_marsched.scheduling.chosen_policies import Policies
from dask_marsched.scheduling.plan_finder import PlanFinder, PreparedGraph, PreparedPlan

#: A plan that is kept (`_Plan`) is made again when the number of workers has grown by this factor.
_MANY_MORE = 4


@dataclass(eq=False)
class _Plan:
    """A plan that may be made again.

    It is dropped when no initial operand is `unstarted` and no search is running, or after the
    search if it is not `lasting`.
    """

    graph: OperandGraph
    tasks: list[TaskState]
    guessed: dict[int, Any]  #: Kinds (`core.size_model`) of the operands of unknown size.
    bound_to_workers: bool = False
    n_workers: int = 0
    workers: list[WorkerSlot] = field(default_factory=list)
    lasting: bool = False
    searching: bool = False
    unstarted: dict[TaskState, int] = field(default_factory=dict)


class Planner:
    """Makes and remakes the plans of one scheduler; `workers` are in the order of joining.

    `apply_units` is called with the tasks of a graph, the units of its plan and the workers that it
    was made for; units refer to tasks and workers by number. On the scheduler itself only
    priorities are changed.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        policies: Policies,
        settings: Settings,
        counters: Counters,
        apply_units: Callable[[list[TaskState], list[Unit], list[WorkerSlot]], None],
    ) -> None:
        self.scheduler: Any = scheduler
        self.policies = policies
        self.settings = settings
        self.counters = counters
        self.apply_units = apply_units
        self.workers: list[str] = []
        self.observer: OperandTracker | None = None
        self._finder = PlanFinder(policies.assignment, counters)
        self._sizes: ChunkSizes | None = None
        self._prepared: PreparedGraph | None = None
        self._single = False
        self._model = SizeModel()
        self._unlearned: dict[TaskState, Any] = {}
        self._plans: dict[_Plan, None] = {}
        self._plan_of: dict[TaskState, _Plan] = {}
        self._cut_up: set[TaskState] = set()
        #: Tasks of unfinished tiles: their workers may prefetch inputs.
        self.tiled: set[TaskState] = set()
        #: Exact bytes of results as derived from their graphs, by key.
        self.known_nbytes: dict[Key, int] = {}
        self._new_kinds = False
        self._next_replan = self._observed = 0

    def is_piece(self, ts: TaskState) -> bool:
        """Whether a task only cuts a piece off a result, all of which is cut into pieces.

        It runs where the result is, as cutting is cheaper than moving the result.
        """
        return len(ts.dependencies) == 1 and not self._cut_up.isdisjoint(ts.dependencies)

    def prepare(self, graph: OperandGraph, exact: Mapping[Key, int]) -> PreparedGraph:
        """Plan a graph before its tasks exist; runs in the scheduler's offload thread."""
        there, threads = self.scheduler.workers, self.scheduler.total_nthreads
        running = [ws for address in list(self.workers) if (ws := there.get(address)) is not None]
        plan = self._finder.prepare(graph, snapshot.worker_slots(running, {}))
        cut_up = cut_up_operands(graph, threads)
        keys: Sequence[Any] = graph.keys
        known = {key: size for key in keys if (size := exact.get(key)) is not None}
        return PreparedGraph(graph, plan, threads, cut_up, known, GraphArrays.of(graph))

    def graph_arrives(
        self, tasks: int, sizes: ChunkSizes | None, prepared: PreparedGraph | None = None
    ) -> None:
        """Keep what is known of a graph of so many tasks until they exist."""
        self._sizes, self._prepared, self._single = sizes, prepared, tasks == 1
        if prepared is not None:
            prepared.known_before = len(self.scheduler.tasks)

    def plan_prepared(self, touched: int, annotated: bool) -> bool:
        """Plan a new graph of so many tasks as it was prepared; False if it has to be read.

        Only tasks that are `annotated` may be restricted.
        """
        prepared = self._prepared
        found = None if prepared is None else prepared.tasks(touched, self.scheduler.tasks)
        if prepared is None or found is None:
            return False
        self._sizes = self._prepared = None
        plan = _Plan(prepared.graph, found, {})
        fresh: Collection[int] = range(len(found))
        if annotated and any(map(snapshot.restricted, found)):
            fresh = self._fresh(found)
        self._carry_out(plan, fresh, prepared)
        return True

    def plan(self, wanted: Iterable[TaskState], touched: Iterable[TaskState] | None = None) -> None:
        """Plan the tasks needed for the wanted ones; `touched` are all tasks of a new graph."""
        sizes, self._sizes, self._prepared = self._sizes, None, None
        single, self._single = self._single, False
        if single and touched is not None:
            return  # without inputs it is alone; with inputs it is no initial operand
        tasks = snapshot.tasks_to_compute(wanted, touched)
        if len(tasks) < 2:
            return
        sizes = sizes if sizes is not None else ChunkSizes()
        plan = _Plan(*self._read(tasks, sizes))
        graph, threads, get = plan.graph, self.scheduler.total_nthreads, sizes.exact.get
        exact = {ts.key: size for ts in plan.tasks if (size := get(ts.key)) is not None}
        cut_up = cut_up_operands(graph, threads)
        found = PreparedGraph(graph, None, threads, cut_up, exact, None)
        self._carry_out(plan, self._fresh(plan.tasks), found)

    def _carry_out(self, plan: _Plan, fresh: Collection[int], prepared: PreparedGraph) -> None:
        """Make a plan and put it in force; units may hold the `fresh` tasks."""
        graph, tasks, guessed = plan.graph, plan.tasks, plan.guessed
        self._order(graph, tasks)
        threads = self.scheduler.total_nthreads
        same = prepared.threads == threads
        cut_up = prepared.cut_up if same else cut_up_operands(graph, threads)
        self._cut_up.update(tasks[i] for i in cut_up)
        units = self._assign(plan, fresh, prepared.plan)
        self._apply(plan, units)
        if self.observer is not None:
            self.observer.planned(graph, tasks, units, prepared.arrays)
        self.counters.graphs_planned += 1
        self.counters.operands_planned += len(tasks)
        self.counters.exact_sizes += len(prepared.exact)
        self.known_nbytes.update(prepared.exact)
        learning = bool(guessed and graph.inputs.flat)  # sizes place nothing without edges
        # Only a larger cluster could improve other plans, which is no reason to keep the graph.
        plan.lasting = plan.bound_to_workers or learning or not self.workers
        if plan.lasting or plan.searching:
            plan.unstarted = {tasks[i]: i for unit in units for i in unit.operands}
            if plan.unstarted:
                self._plans[plan] = None
                self._plan_of.update(dict.fromkeys(plan.unstarted, plan))
        if learning:
            self._unlearned.update((tasks[i], own_kinds) for i, own_kinds in guessed.items())
            self._next_replan = self._observed + max(4, 2 * len(self.workers))

    def _fresh(self, tasks: list[TaskState]) -> set[int]:
        """Return the tasks that units may hold."""
        restricted, planned = snapshot.restricted, self.policies.withholding.planned
        return {i for i, ts in enumerate(tasks) if not planned(ts) and not restricted(ts)}

    def _read(
        self, tasks: list[TaskState], sizes: ChunkSizes
    ) -> tuple[OperandGraph, list[TaskState], dict[int, Any]]:
        """Return the graph of tasks, the tasks in its order, and the kinds of unknown sizes."""
        guessed: dict[int, Any] = {}
        try:
            return self._graph(tasks, sizes, guessed), tasks, guessed
        except ValueError:
            # Priorities are no topological order where a graph uses tasks of a later one.
            tasks, guessed = snapshot.topological(tasks), {}
            return self._graph(tasks, sizes, guessed), tasks, guessed

    def _graph(
        self, tasks: list[TaskState], sizes: ChunkSizes, guessed: dict[int, Any]
    ) -> OperandGraph:
        nbytes: list[float] = [sizes.exact.get(ts.key, -1.0) for ts in tasks]
        for i in [i for i, size in enumerate(nbytes) if size < 0]:
            ts = tasks[i]
            size: float | None = sizes.estimated.get(ts.key)
            if size is None:
                index = ts.key[1:] if isinstance(ts.key, tuple) else ()
                own_kinds = kinds(ts.group.name, len(ts.dependencies), len(ts.dependents), index)
                guessed[i] = own_kinds
                size = self._model.predict(own_kinds)
            if size is not None:
                nbytes[i] = size
        numbers = {address: n for n, address in enumerate(self.workers)}
        return snapshot.operand_graph(tasks, with_averages(nbytes), numbers)

    def _order(self, graph: OperandGraph, tasks: list[TaskState]) -> None:
        order = self.policies.ordering.order(graph)
        if order is None:
            return
        for rank, i in enumerate(order):
            ts = tasks[i]
            if ts.state == "released" and ts.priority:
                ts.priority = (*ts.priority[:-1], rank)

    def _assign(
        self, plan: _Plan, pending: Collection[int], prepared: PreparedPlan | None = None
    ) -> list[Unit]:
        """Return units for the pending operands; a search may replace them later."""
        graph, tasks = plan.graph, plan.tasks
        bound: dict[str, int] = {}
        for i in graph if len(pending) < len(graph) else ():  # a new graph has not begun
            if not graph.inputs[i] and i not in pending:
                ws = tasks[i].processing_on or next(iter(tasks[i].who_has or ()), None)
                if ws is not None:
                    bound[ws.address] = bound.get(ws.address, 0) + 1
        slots = snapshot.worker_slots((self.scheduler.workers[a] for a in self.workers), bound)
        plan.workers = slots
        adopt = partial(self._adopt, plan, slots)
        units, plan.searching = self._finder.find(graph, slots, pending, adopt, prepared)
        return units

    def _apply(self, plan: _Plan, units: list[Unit]) -> None:
        plan.bound_to_workers = any(unit.worker is not None for unit in units)
        plan.n_workers = len(plan.workers)
        tasks = plan.tasks
        self.tiled.update(tasks[i] for unit in units if unit.tile for i in unit.operands)
        self.apply_units(tasks, units, plan.workers)

    def _adopt(self, plan: _Plan, workers: list[WorkerSlot], units: list[Unit]) -> None:
        """Put the result of a search in force for the units that no worker has opened."""
        if plan not in self._plans or plan.workers is not workers:
            return  # the plan has ended or was remade meanwhile
        pending = self._unopened(plan)
        # Tiles also contain operands with inputs, which no other plan assigns.
        first = {i for unit in units for i in unit.operands if self._is_to_come(plan.tasks[i])}
        pending |= first
        if rest := pending_units(units, pending):
            if plan.lasting:
                plan.unstarted.update((plan.tasks[i], i) for i in first)
                self._plan_of.update((plan.tasks[i], plan) for i in first)
            self._apply(plan, rest)
            if self.observer is not None:
                self.observer.planned_again(plan.tasks, rest)
            self.counters.refined += 1
        plan.searching = False
        if not (plan.lasting and plan.unstarted):
            self._drop(plan)

    def _is_to_come(self, ts: TaskState) -> bool:
        """Whether a task waits for its inputs and is in no unit."""
        return ts.state == "waiting" and not self.policies.withholding.planned(ts)

    def _unopened(self, plan: _Plan) -> set[int]:
        """Return the operands of a plan that may be planned again."""
        owner = self.policies.withholding.owner
        return {i for ts, i in plan.unstarted.items() if plan.bound_to_workers or owner(ts) is None}

    def _drop(self, plan: _Plan) -> None:
        del self._plans[plan]
        for ts in plan.unstarted:
            del self._plan_of[ts]

    def learn(self, ts: TaskState) -> bool:
        """Learn from a result of guessed size; return whether it pays to plan again.

        It does after a new kind of result, if the number of results has doubled since the last
        time.
        """
        own_kinds = self._unlearned.pop(ts, None)
        if own_kinds is None:
            return False
        self._observed += 1
        if self._model.observe(own_kinds, ts.get_nbytes()):
            self._new_kinds = True
        if not self._new_kinds or self._observed < self._next_replan:
            return False
        self._new_kinds = False
        self._next_replan = 2 * self._observed
        return True

    def plan_again(self) -> None:
        """Remake the plans with guessed sizes."""
        for plan in [p for p in self._plans if p.guessed]:
            self._replan(plan)

    def set_workers(self, workers: list[str]) -> None:
        """Set the running workers; remake plans that name workers or were made for far fewer."""
        self.workers = workers
        for plan in list(self._plans):
            many_more = bool(workers) and len(workers) >= _MANY_MORE * plan.n_workers
            if plan.bound_to_workers or many_more:
                self._replan(plan)

    def _replan(self, plan: _Plan) -> None:
        """Plan again the units that no worker has opened."""
        graph = plan.graph
        if plan.guessed:
            nbytes, known = list(graph.nbytes), bytearray(graph.known)
            for i, own_kinds in plan.guessed.items():
                size = self._model.predict(own_kinds)
                if size is not None:
                    nbytes[i], known[i] = size, 1
            graph = plan.graph = graph.with_nbytes(nbytes, bytes(known))
        pending = self._unopened(plan)
        if pending:
            units = self._assign(plan, pending)
            self._apply(plan, units)
            if self.observer is not None:
                self.observer.planned_again(plan.tasks, units)
            self.counters.replanned += 1

    def started(self, ts: TaskState) -> None:
        """Note that a task was sent to a worker, or never will be."""
        plan = self._plan_of.pop(ts, None)
        if plan is not None:
            del plan.unstarted[ts]
            if not plan.unstarted and not plan.searching:
                self._plans.pop(plan, None)

    def forget(self, ts: TaskState) -> None:
        """Drop a task that Dask has forgotten."""
        self._unlearned.pop(ts, None)
        self._cut_up.discard(ts)
        self.tiled.discard(ts)
        self.known_nbytes.pop(ts.key, None)
        self.started(ts)
        group = ts.group
        # Group names contain tokens, so most never recur.
        if group.name in self._model and not any(
            count for state, count in group.states.items() if state != "forgotten"
        ):
            self._model.forget(group.name)

    def close(self) -> None:
        """Stop searches for plans."""
        self._finder.close()

    def clear(self) -> None:
        """Drop all plans and learned sizes."""
        self._finder.clear()
        self._plans.clear()
        self._plan_of.clear()
        self._unlearned.clear()
        self._cut_up.clear()
        self.tiled.clear()
        self.known_nbytes.clear()
        self._model = SizeModel()
