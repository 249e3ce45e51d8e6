"""A graph's tasks by number instead of by key."""

from __future__ import annotations

from collections.abc import Mapping

from dask._task_spec import GraphNode
from dask.typing import Key

from dask_marsched.core.graph import Edges, topological_order


def numbered(dsk: Mapping[Key, GraphNode]) -> tuple[list[Key], Edges]:
    """Return the tasks of a graph, and what it reads from outside, in topological order.

    Raises
    ------
    ValueError
        The graph has a cycle.
    """
    number = {key: i for i, key in enumerate(dsk)}
    keys = list(dsk)
    inputs: list[list[int]] = []
    for node in dsk.values():
        own = []
        for key in node.dependencies:
            i = number.get(key)
            if i is None:
                i = number[key] = len(keys)
                keys.append(key)
            own.append(i)
        inputs.append(own)
    inputs.extend([] for _ in range(len(keys) - len(dsk)))
    order = topological_order(inputs)
    place = [0] * len(order)
    for rank, i in enumerate(order):
        place[i] = rank
    rows = (sorted([place[j] for j in inputs[i]]) for i in order)
    return [keys[i] for i in order], Edges.of(rows)
