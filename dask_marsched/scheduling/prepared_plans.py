"""Holds the plan of a graph that was made in the offload thread, until the graph's tasks exist."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask.typing import Key
from distributed.scheduler import TaskState

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.graph_record import GraphArrays
from dask_marsched.core.plan import Unit, WorkerSlot
from dask_marsched.policies.planning.plan_search import Search


@dataclass(frozen=True, eq=False)
class PreparedPlan:
    """The plan of a graph none of whose tasks has begun, for the workers of that moment."""

    graph: OperandGraph
    workers: Sequence[WorkerSlot]
    digest: bytes  #: Of both.
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
