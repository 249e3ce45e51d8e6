"""Numbers the tasks of a graph, so that policies work on integers instead of keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dask._task_spec import GraphNode
from dask.typing import Key
from dask.utils import key_split

from dask_marsched.core.canonical_order import canonical_order
from dask_marsched.core.graph import Edges, topological_order


def numbered(dsk: Mapping[Key, GraphNode]) -> tuple[list[Key], Edges]:
    """Return the tasks and what they read, in topological order; raise a ValueError for a cycle."""
    keys, inputs = as_they_come(dsk)
    return _in_order(keys, inputs, topological_order(inputs))


def as_they_come(dsk: Mapping[Key, GraphNode]) -> tuple[list[Key], Edges]:
    """Return what `numbered` does, in the order of the graph; the inputs of each in no order."""
    number = {key: i for i, key in enumerate(dsk)}
    keys = list(dsk)
    starts, flat = [0], list[int]()
    get, add, end = number.get, flat.append, starts.append
    for node in dsk.values():
        for key in node.dependencies:
            i = get(key)
            if i is None:
                i = number[key] = len(keys)
                keys.append(key)
            add(i)
        end(len(flat))
    starts.extend([len(flat)] * (len(keys) - len(dsk)))
    return keys, Edges(starts, flat)


def canonically_numbered(dsk: Mapping[Key, GraphNode]) -> tuple[list[Key], Edges]:
    """Return what `numbered` does, in an order that follows from the graph alone."""
    keys, inputs = as_they_come(dsk)
    keys, inputs = _in_order(keys, inputs, canonical(keys, inputs))
    return _in_order(keys, inputs, topological_order(inputs))


def canonical(keys: Sequence[Key], inputs: Edges) -> list[int]:
    """Return tasks in an order that ignores their numbering; raise a ValueError for a cycle."""
    names: list[str] = []
    indices: list[tuple[Any, ...]] = []
    for key in keys:
        if isinstance(key, tuple) and key:
            names.append(str(key[0]))
            indices.append(key[1:])
        else:
            names.append(str(key))
            indices.append(())
    words = {name: key_split(name) for name in dict.fromkeys(names)}
    return canonical_order(names, indices, words, inputs)


def _in_order(keys: Sequence[Key], inputs: Edges, order: Sequence[int]) -> tuple[list[Key], Edges]:
    return [keys[i] for i in order], inputs.renumbered(order)
