"""Groups initial operands into units, each for one worker, whose results meet soon."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import ClassVar, Protocol, runtime_checkable

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.plan import Unit, WorkerSlot
from dask_marsched.core.roles import roles
from dask_marsched.policies.planning.clustering import Clustering
from dask_marsched.policies.planning.counterpart_merging import join_counterparts
from dask_marsched.policies.planning.host_shares import (
    cut_into_shares,
    runs_to_a_host,
    several_to_a_host,
)
from dask_marsched.policies.planning.plan_search import (
    CANDIDATES,
    FEW_OPERANDS,
    NOT_CUT,
    PlanChecks,
    UnitBounds,
    choose_bounds,
    choose_runs,
    sample,
    sample_size,
    stock_peak,
)
from dask_marsched.policies.planning.tiles import with_tiles


@runtime_checkable
class AssignmentPolicy(Protocol):
    """Protocol of an assignment policy."""

    #: Name for `status` and the configuration.
    name: ClassVar[str]

    def assign(
        self,
        graph: OperandGraph,
        workers: Sequence[WorkerSlot],
        pending: Collection[int] | None = None,
    ) -> list[Unit]:
        """Group the initial operands of a graph.

        Parameters
        ----------
        graph
            The operands still to be computed, in order of priority.
        workers
            The workers, in the order in which they joined; may be empty.
        pending
            The initial operands to assign; None for all. Given when a running graph is planned
            again because workers or sizes changed.

        Returns
        -------
        list of Unit
            Disjoint units, the most urgent first. Other initial operands run on their own.
        """
        ...


@runtime_checkable
class SearchingPolicy(AssignmentPolicy, Protocol):
    """An assignment policy that searches among plans, and can also plan without a search."""

    def effort(self, graph: OperandGraph, workers: Sequence[WorkerSlot]) -> float:
        """Return about how many seconds `assign` takes longer than `prompt`."""
        ...

    def prompt(
        self,
        graph: OperandGraph,
        workers: Sequence[WorkerSlot],
        pending: Collection[int] | None = None,
    ) -> list[Unit]:
        """Group initial operands without a search (`AssignmentPolicy.assign`)."""
        ...


#: The bound without workers, and until a search ends. In simulation 4 and 8 moved or held more.
_KAPPA = 16.0
#: The bound if most sizes are unknown: units that turn out to be large cannot be cut later.
_KAPPA_UNKNOWN = 4.0
#: Part of a typical result that both sides of a merge must contribute: 0 gave 2.8 of stock's peak.
_STAKE = 0.15
#: Seconds a search takes for each operand of the sample, and for each operand of the graph.
_SEARCH_TIME, _CHECK_TIME = 1e-4, 2e-5


class _Traversal:
    """Traverses the undirected graph, a share of it for each worker.

    The visited initial operands go to one worker until its share is exceeded: that is proportional
    to its threads, less what it has run or is bound to run. Source: the Mars project's published
    description of its "initial worker assignment".
    """

    name: ClassVar[str]
    _last_in_first_out: ClassVar[bool]

    def assign(
        self,
        graph: OperandGraph,
        workers: Sequence[WorkerSlot],
        pending: Collection[int] | None = None,
    ) -> list[Unit]:
        """Return one unit for each worker that got operands (`AssignmentPolicy.assign`)."""
        starts = [i for i in graph if not graph.inputs[i] and (pending is None or i in pending)]
        if not workers:
            return [Unit(tuple(starts))] if starts else []
        # Mars' limit counts all operands, `WorkerSlot.bound` only initial ones.
        per_initial = len(graph) / max(1, sum(not inputs for inputs in graph.inputs))
        threads = sum(w.nthreads for w in workers)
        total = per_initial * (len(starts) + sum(w.bound for w in workers))
        shares = [total * w.nthreads / threads - per_initial * w.bound for w in workers]
        wanted = set(starts)
        seen = bytearray(len(graph))
        units: list[Unit] = []
        next_start = 0
        for number in range(len(workers)):
            limit = shares[number] if number < len(workers) - 1 else math.inf
            own: list[int] = []
            visited = 0
            while visited < limit and next_start < len(starts):
                start = starts[next_start]
                if seen[start]:
                    next_start += 1
                    continue
                visited += self._visit(graph, start, seen, limit - visited, wanted, own)
            if own:
                units.append(Unit(tuple(sorted(own)), number))
        units.sort(key=lambda unit: unit.operands[0])
        return units

    def _visit(
        self,
        graph: OperandGraph,
        start: int,
        seen: bytearray,
        limit: float,
        wanted: Collection[int],
        own: list[int],
    ) -> int:
        """Traverse from one start, append initial operands to `own`, return the number visited."""
        frontier = deque([start])
        visited = 0
        while frontier and visited < limit:
            i = frontier.pop() if self._last_in_first_out else frontier.popleft()
            if seen[i]:
                continue
            seen[i] = 1
            visited += 1
            if i in wanted:
                own.append(i)
            near = sorted({*graph.inputs[i], *graph.dependents[i]}, reverse=self._last_in_first_out)
            frontier.extend(j for j in near if not seen[j])
        return visited


class DepthFirst(_Traversal):
    """Mars' assignment by depth-first search."""

    name = "dfs"
    _last_in_first_out = True


class BreadthFirst(_Traversal):
    """Mars' assignment by breadth-first search."""

    name = "bfs"
    _last_in_first_out = False


class BoundedUnits:
    """Units of bounded memory, dispatched in global order of priority (the default).

    Each initial operand starts as a cluster. The other operands are visited by depth and priority.
    An operand merges the clusters of its inputs if that saves enough bytes (the *stake*), leaves
    work for other workers, and keeps the peak of the merged cluster below *kappa* typical initial
    results. So results that meet are produced on one worker, and memory stays close to that of the
    global order. No single kappa serves all graphs, so None chooses it by forecasts.
    """

    name: ClassVar[str] = "units"

    def __init__(self, kappa: float | None = None) -> None:
        self.kappa = kappa
        self._checks = PlanChecks()

    def assign(
        self,
        graph: OperandGraph,
        workers: Sequence[WorkerSlot],
        pending: Collection[int] | None = None,
    ) -> list[Unit]:
        """Return bounded units, bound to no worker (`AssignmentPolicy.assign`)."""
        planning = _Planning(graph, workers)
        known = _mostly_known(graph)
        by_host = several_to_a_host(workers)
        if not self._searches(graph, workers):
            units = planning.plan(self._fixed(graph))
        elif by_host:
            # Operands of different units still meet on the same host, so units may be small.
            units = planning.plan(UnitBounds(CANDIDATES[0]))
        else:
            part, some = sample(graph, workers)
            bounds, units = choose_bounds(part, some, lambda bounds: planning.plan(bounds, part))
            if part is not graph:
                if len({w.host for w in workers}) > 1:
                    bounds = self._checks.bounds(graph, workers, planning.plan, bounds)
                units = planning.plan(bounds)
        if not by_host:
            units = planning.join(units)
            if known and workers:
                units = with_tiles(graph, units, workers)
        units = pending_units(units, pending)
        if not by_host or not units:
            return units

        def runs() -> int:
            hosts = len({w.host for w in workers})
            least = runs_to_a_host(graph, units, hosts, stock_peak(graph, workers))
            if not known:
                return least
            lean = UnitBounds(self.kappa or CANDIDATES[0])
            return choose_runs(graph, workers, lambda part: planning.plan(lean, part), least)

        found = self._checks.runs(graph, workers, runs)
        return units if found == NOT_CUT else cut_into_shares(units, workers, found)

    def effort(self, graph: OperandGraph, workers: Sequence[WorkerSlot]) -> float:
        """Return about how many seconds the search takes (`SearchingPolicy.effort`)."""
        by_host = several_to_a_host(workers)
        if not by_host and not self._searches(graph, workers):
            tiled = bool(workers) and _mostly_known(graph)
            return _CHECK_TIME * len(graph) if tiled else 0.0
        part = len(graph) if by_host else min(len(graph), sample_size(len(graph)))
        return _SEARCH_TIME * part + _CHECK_TIME * len(graph)

    def prompt(
        self,
        graph: OperandGraph,
        workers: Sequence[WorkerSlot],
        pending: Collection[int] | None = None,
    ) -> list[Unit]:
        """Return units of a fixed bound, without tiles (`SearchingPolicy.prompt`)."""
        planning = _Planning(graph, workers)
        units = planning.plan(self._fixed(graph))
        if not several_to_a_host(workers):
            return pending_units(planning.join(units), pending)
        units = pending_units(units, pending)
        if not units:
            return units
        peak = stock_peak(graph, workers, FEW_OPERANDS)
        runs = runs_to_a_host(graph, units, len({w.host for w in workers}), peak)
        return cut_into_shares(units, workers, runs)

    def _searches(self, graph: OperandGraph, workers: Sequence[WorkerSlot]) -> bool:
        return self.kappa is None and bool(workers) and _mostly_known(graph)

    def _fixed(self, graph: OperandGraph) -> UnitBounds:
        if not _mostly_known(graph):
            return UnitBounds(_KAPPA_UNKNOWN)
        return UnitBounds(self.kappa or _KAPPA)


class _Planning:
    def __init__(self, graph: OperandGraph, workers: Sequence[WorkerSlot]) -> None:
        threads = sum(w.nthreads for w in workers) or 1
        largest = max((w.nthreads for w in workers), default=1)
        self._graph = graph
        self._role = role = roles(graph, threads)
        self._limit = math.ceil(sum(role.initial) * largest / threads)
        # Hubs without inputs are withheld as well: there may be one for each block of a matrix.
        self._hubs = [[i] for i, flag in enumerate(role.hub) if flag and not graph.inputs[i]]
        self._prepared: dict[int, Clustering] = {}

    def plan(self, bounds: UnitBounds, part: OperandGraph | None = None) -> list[Unit]:
        """Return the units of the graph, or of `part`, its first operands."""
        part = part or self._graph
        clustering = self._prepared.get(len(part))
        if clustering is None:
            own = self._role.head(len(part))
            clustering = self._prepared[len(part)] = Clustering(part, own, stake=_STAKE)
        limit = min(self._limit, bounds.size or self._limit)
        groups = clustering.groups(kappa=bounds.kappa, limit=limit)
        groups.extend(hub for hub in self._hubs if hub[0] < len(part))
        return sorted((Unit(tuple(group)) for group in groups), key=lambda u: u.operands[0])

    def join(self, units: list[Unit]) -> list[Unit]:
        """Join units whose results are read together later."""
        return join_counterparts(
            self._graph, units, self._role.hub, stake=_STAKE, limit=self._limit
        )


def _mostly_known(graph: OperandGraph) -> bool:
    return 2 * sum(graph.known) >= len(graph)


def pending_units(units: list[Unit], pending: Collection[int] | None) -> list[Unit]:
    """Return units with their pending operands only, the most urgent first."""
    if pending is None:
        return units
    left = ((unit, tuple(i for i in unit.operands if i in pending)) for unit in units)
    found = [replace(unit, operands=operands) for unit, operands in left if operands]
    return sorted(found, key=lambda unit: unit.operands[0])
