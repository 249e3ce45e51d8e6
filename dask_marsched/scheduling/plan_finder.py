"""Finds the plan of a graph: a remembered one, a prompt one, or the result of a search.

A long search runs in a thread. Meanwhile the graph begins with a prompt plan.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from dask.typing import Key
from distributed.scheduler import TaskState

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.graph_record import GraphArrays
from dask_marsched.core.memoization import without_tokens
from dask_marsched.core.plan import Unit, WorkerSlot
from dask_marsched.fallbacks.counters import Counters
from dask_marsched.policies.assignment import AssignmentPolicy, SearchingPolicy
from dask_marsched.policies.planning.plan_search import (
    Search,
    extent_of_search,
    seconds_at_stake,
)

#: Most plans that are remembered, and most operands in all of them.
_MOST_PLANS, _MOST_OPERANDS = 100, 300_000

Adopt = Callable[[list[Unit]], None]


@dataclass(frozen=True, eq=False)
class PreparedPlan:
    """The plan of a graph none of whose tasks has begun, for the workers of that moment."""

    graph: OperandGraph
    workers: Sequence[WorkerSlot]
    digest: int  #: Of both.
    extent: Search = Search.NONE  #: When to search for a better plan.
    units: list[Unit] | None = None  #: To begin with; None if a plan of this digest is remembered.

    def fits(
        self, graph: OperandGraph, workers: Sequence[WorkerSlot], pending: Collection[int]
    ) -> bool:
        """Whether it is a plan of this graph, all of which is pending, for these workers."""
        return graph is self.graph and len(pending) == len(graph) and workers == self.workers


@dataclass(eq=False)
class PreparedGraph:
    """A graph that was read, in the offload thread if there are `arrays`."""

    graph: OperandGraph
    plan: PreparedPlan | None  #: None if the policy has to be asked on the event loop.
    threads: int  #: Of the cluster at that moment.
    cut_up: list[int]  #: Operands (`core.roles.cut_up_operands`), given those threads.
    exact: Mapping[Key, int]  #: Exact sizes of results, bytes, by key.
    arrays: GraphArrays | None  #: The graph as the observer keeps it.
    #: Tasks that the scheduler had when it was about to create those of the graph.
    known_before: int = -1

    def tasks(self, touched: int, known: Mapping[Key, TaskState]) -> list[TaskState] | None:
        """Return the tasks in order of priority; None if others than the graph's were created.

        ``touched`` is how many tasks came with the graph.
        """
        keys: Sequence[Any] = self.graph.keys
        if touched != len(keys) or len(known) - self.known_before != len(keys):
            return None
        try:
            return list(map(known.__getitem__, keys))
        except KeyError:
            return None


class PlanFinder:
    """Finds the plans of one scheduler."""

    def __init__(self, policy: AssignmentPolicy, counters: Counters) -> None:
        self._policy = policy
        self._searching = policy if isinstance(policy, SearchingPolicy) else None
        self._counters = counters
        self._remembered: OrderedDict[int, list[Unit]] = OrderedDict()
        self._operands = 0
        self._waiting: dict[int, list[Adopt]] = {}
        self._executor: ThreadPoolExecutor | None = None

    def prepare(self, graph: OperandGraph, workers: Sequence[WorkerSlot]) -> PreparedPlan | None:
        """Plan a graph none of whose tasks has begun, in any thread; None if `find` has to."""
        policy = self._searching
        if policy is None:
            return None
        everything = range(len(graph))
        digest = plan_digest(graph, workers, everything)
        if digest in self._remembered:
            return PreparedPlan(graph, workers, digest)
        return self._begin(policy, graph, workers, everything, digest)

    def find(
        self,
        graph: OperandGraph,
        workers: Sequence[WorkerSlot],
        pending: Collection[int],
        adopt: Adopt,
        prepared: PreparedPlan | None = None,
    ) -> tuple[list[Unit], bool]:
        """Return the plan to begin with, and whether a search for a better one is running.

        `pending` are the initial operands to plan. `adopt` is called on the event loop with the
        plan that the search has found, empty if it failed. `prepared` may be of another state of
        the cluster, and is not used then.
        """
        policy = self._searching
        if policy is None:
            return self._policy.assign(graph, workers, pending), False
        if prepared is not None and not prepared.fits(graph, workers, pending):
            prepared = None
        digest = prepared.digest if prepared else plan_digest(graph, workers, pending)
        if digest in self._remembered:
            self._remembered.move_to_end(digest)
            self._counters.plans_reused += 1
            return self._remembered[digest], False
        loop = _running_loop()
        if prepared is None or prepared.units is None:
            beside = loop is not None
            prepared = self._begin(policy, graph, workers, pending, digest, beside=beside)
        units = prepared.units or []
        if digest in self._waiting:
            self._waiting[digest].append(adopt)
            return units, True
        if prepared.extent is Search.IN_BACKGROUND and loop is not None:
            self._search(loop, digest, (graph, workers, pending), adopt)
            return units, True
        self._remember(digest, units)
        return units, False

    def _begin(
        self,
        policy: SearchingPolicy,
        graph: OperandGraph,
        workers: Sequence[WorkerSlot],
        pending: Collection[int],
        digest: int,
        *,
        beside: bool = True,
    ) -> PreparedPlan:
        """Make the plan to begin with; `beside` tells whether there is a loop to search beside."""
        extent = extent_of_search(policy.effort(graph, workers), seconds_at_stake(graph, workers))
        if extent is Search.IN_BACKGROUND and not beside:
            extent = Search.BEFORE_START
        plan = policy.assign if extent is Search.BEFORE_START else policy.prompt
        return PreparedPlan(graph, workers, digest, extent, plan(graph, workers, pending))

    def clear(self) -> None:
        """Ignore the results of running searches; they are still remembered."""
        self._waiting.clear()

    def close(self) -> None:
        """End the thread, after the search that it runs."""
        self.clear()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def _search(
        self,
        loop: asyncio.AbstractEventLoop,
        digest: int,
        work: tuple[OperandGraph, Sequence[WorkerSlot], Collection[int]],
        adopt: Adopt,
    ) -> None:
        """Search in a thread of its own: Dask's offload thread has to read arriving graphs."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="marsched-plans")
        adopters = self._waiting[digest] = [adopt]
        future = loop.run_in_executor(self._executor, self._policy.assign, *work)

        def done(future: asyncio.Future[list[Unit]]) -> None:
            wanted = self._waiting.get(digest) is adopters
            if wanted:
                del self._waiting[digest]
            if future.cancelled():
                return
            error = future.exception()
            if error is not None:
                known = error if isinstance(error, Exception) else Exception(repr(error))
                self._counters.caught("search", known)
            else:
                self._remember(digest, future.result())
            if not wanted:
                return
            for each in adopters:
                try:
                    each(future.result() if error is None else [])
                except Exception as failure:  # the present plan stays
                    self._counters.caught("adopt", failure)

        future.add_done_callback(done)

    def _remember(self, digest: int, units: list[Unit]) -> None:
        if digest in self._remembered:
            return
        self._remembered[digest] = units
        self._operands += _operands(units)
        while len(self._remembered) > _MOST_PLANS or self._operands > _MOST_OPERANDS:
            _, dropped = self._remembered.popitem(last=False)
            self._operands -= _operands(dropped)


def _operands(units: list[Unit]) -> int:
    return sum(len(unit.operands) for unit in units)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def plan_digest(
    graph: OperandGraph, workers: Sequence[WorkerSlot], pending: Collection[int]
) -> int:
    """Return a hash of everything that an assignment policy reads.

    Of the keys only the structure counts, since names hold tokens that differ with each submission.
    """
    everything = len(pending) == len(graph)
    edges, sizes = graph.inputs, (graph.nbytes, graph.known, graph.home, graph.home_bytes)
    return hash((
        *map(tuple, (edges.starts, edges.flat, *sizes, without_tokens(graph.keys))),
        *(graph.kept, graph.pieces, None if everything else frozenset(pending)),
        *[(w.nthreads, w.memory_limit, w.bound, w.host) for w in workers],
    ))  # fmt: skip
