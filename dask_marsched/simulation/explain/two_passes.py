"""Splits a computation in two at a task that keeps all chunks of a group in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from dask.optimization import cull

from dask_marsched.host.twin.literals import placeholder_data
from dask_marsched.simulation.costs.graph_facts import GraphFacts
from dask_marsched.simulation.costs.persisted import PersistedGraph

#: Least number of chunks that a barrier is computed from.
_MANY_CHUNKS = 8
#: Most tasks that are visited to count these chunks.
_MOST_VISITED = 2_000


def find_barrier(facts: GraphFacts, group: str) -> set[Any] | None:
    """Return the tasks for whose results most chunks of a group wait, or None.

    They are computed from many chunks of the group, and needed together with one of these chunks.
    """
    members = set(facts.groups.get(group, ()))
    found: set[Any] = set()
    counted: dict[Any, bool] = {}
    waiting = 0
    for chunk in members:
        barriers = set()
        for user in facts.dependents[chunk]:
            for other in facts.tasks[user].dependencies:
                if other in members:
                    continue
                if other not in counted:
                    counted[other] = _needs_many(facts, other, members)
                if counted[other]:
                    barriers.add(other)
        waiting += bool(barriers)
        found |= barriers
    return found if found and waiting > len(members) / 2 else None


def _needs_many(facts: GraphFacts, key: Any, members: set[Any]) -> bool:
    seen = {key}
    queue = deque(seen)
    found = 0
    while queue and len(seen) < _MOST_VISITED:
        for dependency in facts.tasks[queue.popleft()].dependencies:
            if dependency not in seen:
                seen.add(dependency)
                queue.append(dependency)
                found += dependency in members
                if found == _MANY_CHUNKS:
                    return True
    return False


def split_in_two(facts: GraphFacts, barrier: set[Any]) -> tuple[PersistedGraph, PersistedGraph]:
    """Return a graph that computes the barrier, and one that computes the rest from its results."""
    first = cull(facts.tasks, barrier)[0]
    given: Mapping[Any, Any] = {**facts.tasks, **{key: placeholder_data(key) for key in barrier}}
    second = cull(given, facts.keys)[0]
    return PersistedGraph(first, barrier, None), PersistedGraph(second, facts.keys, None)
