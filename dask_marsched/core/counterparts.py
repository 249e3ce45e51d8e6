"""Results that are read together later, as far as their names tell.

Arrays that are persisted together and cut in the same way, as the variables of a dataset, are
combined chunk by chunk nearly always. Nothing in their graph says so yet.
"""

from __future__ import annotations

from collections.abc import Hashable

from dask_marsched.core.graph import OperandGraph


def counterparts(graph: OperandGraph) -> list[list[int]]:
    """Return the final operands that have the same place in arrays with the same places.

    Parameters
    ----------
    graph
        The graph; the key of a chunk is the array's name with the chunk's indices behind it.

    Returns
    -------
    list of lists of int
        At least two operands each, by their lowest number.
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
