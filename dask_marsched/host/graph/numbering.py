"""Numbers the tasks of a graph, so that policies work on integers instead of keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dask._task_spec import GraphNode
from dask.typing import Key
from dask.utils import key_split

from dask_marsched.core.canonical_order import canonical_order
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
    return _in_order(keys, inputs, topological_order(inputs))


def canonically_numbered(dsk: Mapping[Key, GraphNode]) -> tuple[list[Key], Edges]:
    """Return what `numbered` does, in an order that follows from the graph alone.

    Raises
    ------
    ValueError
        The graph has a cycle.
    """
    keys, inputs = numbered(dsk)
    first = canonical(keys, inputs)
    place = [0] * len(first)
    for rank, i in enumerate(first):
        place[i] = rank
    rows = [sorted([place[j] for j in inputs[i]]) for i in first]
    return _in_order([keys[i] for i in first], rows, topological_order(rows))


def canonical(keys: Sequence[Key], inputs: Sequence[Sequence[int]]) -> list[int]:
    """Return the numbers of tasks in an order that does not depend on how they are numbered.

    Parameters
    ----------
    keys, inputs
        As `numbered` returns them.
    """
    parts = [
        (str(key[0]), key[1:]) if isinstance(key, tuple) and key else (str(key), ()) for key in keys
    ]
    names = [name for name, _ in parts]
    words = {name: key_split(name) for name in dict.fromkeys(names)}
    return canonical_order(names, [index for _, index in parts], words, inputs)


def _in_order(
    keys: Sequence[Key], inputs: Sequence[Sequence[int]], order: Sequence[int]
) -> tuple[list[Key], Edges]:
    place = [0] * len(order)
    for rank, i in enumerate(order):
        place[i] = rank
    rows = (sorted([place[j] for j in inputs[i]]) for i in order)
    return [keys[i] for i in order], Edges.of(rows)
