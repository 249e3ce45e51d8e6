"""What a computation would be if it were cut in two at what holds all of its chunks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from dask_marsched.host.graph.literals import as_data
from dask_marsched.simulation.costs.graph_facts import GraphFacts
from dask_marsched.simulation.costs.persisted import PersistedGraph

#: Chunks that must go into a task before it counts as holding all of them up.
_MANY = 8
#: Tasks above another that are looked at for them; what is further up does not count.
_LOOK = 2_000


def find_barrier(facts: GraphFacts, group: str) -> set[Any] | None:
    """Return the tasks for whose results the chunks of a group are kept.

    They are computed from many chunks of the group, and needed together with one of these chunks.

    Returns
    -------
    set of keys or None
        None if there are none, or not for most chunks.
    """
    members = set(facts.groups[group])
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
    while queue and len(seen) < _LOOK:
        for dependency in facts.tasks[queue.popleft()].dependencies:
            if dependency not in seen:
                seen.add(dependency)
                queue.append(dependency)
                found += dependency in members
                if found == _MANY:
                    return True
    return False


def _above(facts: GraphFacts, keys: Iterable[Any]) -> set[Any]:
    """Return these tasks and all that they are computed from."""
    seen = set(keys)
    stack = list(seen)
    while stack:
        for dependency in facts.tasks[stack.pop()].dependencies:
            if dependency not in seen:
                seen.add(dependency)
                stack.append(dependency)
    return seen


def split_in_two(facts: GraphFacts, barrier: set[Any]) -> tuple[PersistedGraph, PersistedGraph]:
    """Return what computes the barrier's tasks, and what computes the rest given their results."""
    first = {key: facts.tasks[key] for key in _above(facts, barrier)}
    given: Mapping[Any, Any] = {**facts.tasks, **{key: as_data(key) for key in barrier}}
    seen, stack = set(facts.keys), list(facts.keys)
    while stack:
        for dependency in given[stack.pop()].dependencies:
            if dependency not in seen:
                seen.add(dependency)
                stack.append(dependency)
    second = {key: given[key] for key in seen}
    return PersistedGraph(first, barrier, None), PersistedGraph(second, facts.keys, None)
