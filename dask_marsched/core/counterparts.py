"""Finds results that are likely to be read together later, by their keys.

Arrays with equal chunks that are persisted together, such as the variables of a dataset, are
usually combined chunk by chunk later.
"""

from __future__ import annotations

from collections.abc import Hashable

from dask_marsched.core.graph import OperandGraph


def counterparts(graph: OperandGraph) -> list[list[int]]:
    """Return groups of at least two final operands at the same place of equally chunked arrays.

    A chunk's key is the array's name followed by its indices. Groups are sorted by lowest number.
    """
    layers: dict[Hashable, dict[tuple[Hashable, ...], int]] = {}
    readers = graph.dependents
    for i, key in enumerate(graph.keys):
        if isinstance(key, tuple) and len(key) > 1 and not readers[i] and i not in graph.kept:
            layers.setdefault(key[0], {})[key[1:]] = i
    if len(layers) < 2:
        return []
    alike: dict[frozenset[tuple[Hashable, ...]], list[dict[tuple[Hashable, ...], int]]] = {}
    for places in layers.values():
        if len(places) > 1:
            alike.setdefault(frozenset(places), []).append(places)
    groups = [
        sorted(places[place] for places in found)
        for shape, found in alike.items()
        for place in shape
        if len(found) > 1
    ]
    return sorted(groups)
