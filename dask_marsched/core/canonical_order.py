"""Orders operands by their graph alone: the hash seed and tokens in keys have no influence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dask_marsched.core.graph import Edges, topological_order

_ROUNDS = 4  #: Steps within which neighbours distinguish equal layers.

_LOOKED_AT = 4  #: Operands of each equal layer whose readers are compared.


def canonical_order(
    names: Sequence[str],
    indices: Sequence[tuple[Any, ...]],
    words: Mapping[str, str],
    inputs: Sequence[Sequence[int]],
) -> list[int]:
    """Return the operands in an order that does not depend on their numbering.

    Layers are sorted by depth, `words` (the part of a layer's name that is not random), size, the
    layers up to four steps away, the places of the operands that read their first ones, and last by
    name. Within a layer operands are sorted by index. A cycle raises CycleError.
    """
    edges = inputs if isinstance(inputs, Edges) else Edges.of(inputs)
    depth = _depths(edges)
    members: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        members.setdefault(name, []).append(i)
    layers = sorted(members)
    number = {name: n for n, name in enumerate(layers)}
    layer_of = [number[name] for name in names]
    reads = _between_layers(edges, layer_of, len(layers))
    first = [min([depth[i] for i in members[name]]) for name in layers]
    looks = [(first[n], words[name], len(members[name])) for n, name in enumerate(layers)]
    rank = _refined(_ranks(looks), reads)
    rows = [_by_index(members[name], indices) for name in layers]
    if max(rank, default=-1) < len(rank) - 1:
        rank = _refined(_by_readers(rank, rows, layer_of, indices, edges), reads)
    ordered = sorted(range(len(layers)), key=lambda n: (rank[n], layers[n]))
    return [i for n in ordered for i in rows[n]]


def _depths(inputs: Edges) -> list[int]:
    """Return each operand's longest path from an operand without inputs."""
    rows = list(inputs)
    depth = [0] * len(rows)
    for i in topological_order(rows):
        deepest = -1
        for j in rows[i]:
            if depth[j] > deepest:
                deepest = depth[j]
        depth[i] = deepest + 1
    return depth


def _between_layers(inputs: Edges, layer_of: Sequence[int], layers: int) -> list[list[int]]:
    """Return for each layer the layers that it reads."""
    of = np.asarray(layer_of, dtype=np.int64)
    first = np.asarray(inputs.starts, dtype=np.int64)
    readers = np.repeat(of, first[1:] - first[:-1])
    reads: list[list[int]] = [[] for _ in range(layers)]
    pairs = np.unique(readers * layers + of[np.asarray(inputs.flat, dtype=np.int64)])
    for pair in pairs.tolist():
        reads[pair // layers].append(pair % layers)
    return reads


def _refined(rank: list[int], reads: Sequence[Iterable[int]]) -> list[int]:
    """Distinguish layers of equal rank by the ranks of their neighbours."""
    readers: list[list[int]] = [[] for _ in rank]
    for n, own in enumerate(reads):
        for m in own:
            readers[m].append(n)
    for _ in range(_ROUNDS):
        if max(rank, default=-1) == len(rank) - 1:
            break
        looks = [
            (rank[n], sorted(rank[m] for m in reads[n]), sorted(rank[m] for m in readers[n]))
            for n in range(len(rank))
        ]
        finer = _ranks([(own, tuple(before), tuple(after)) for own, before, after in looks])
        if max(finer) == max(rank):
            break
        rank = finer
    return rank


def _by_readers(
    rank: list[int],
    rows: Sequence[Sequence[int]],
    layer_of: Sequence[int],
    indices: Sequence[tuple[Any, ...]],
    inputs: Sequence[Sequence[int]],
) -> list[int]:
    """Distinguish layers of equal rank by the readers of their first operands."""
    times = Counter(rank)
    shown = {i for n, row in enumerate(rows) if times[rank[n]] > 1 for i in row[:_LOOKED_AT]}
    readers: list[list[tuple[int, str]]] = [[] for _ in rank]
    for i, own in enumerate(inputs):
        for j in own:
            if j in shown:
                look = (rank[layer_of[i]], f"{indices[i]} {indices[j]}")
                readers[layer_of[j]].append(look)
    return _ranks([(own, tuple(sorted(readers[n]))) for n, own in enumerate(rank)])


def _ranks(looks: Sequence[Any]) -> list[int]:
    place = {look: n for n, look in enumerate(sorted(set(looks)))}
    return [place[look] for look in looks]


def _by_index(members: list[int], indices: Sequence[tuple[Any, ...]]) -> list[int]:
    try:
        return sorted(members, key=indices.__getitem__)
    except TypeError:  # numbers beside words
        return sorted(members, key=lambda i: [(type(x).__name__, repr(x)) for x in indices[i]])
