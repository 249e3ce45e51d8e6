"""Joins units whose results are probably read together, such as chunks of a dataset's variables."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from dask_marsched.core.graph import OperandGraph, typical_nbytes
from dask_marsched.core.plan import Unit


def join_counterparts(
    graph: OperandGraph, units: Sequence[Unit], hub: bytes, *, stake: float, limit: int
) -> list[Unit]:
    """Join the units that produce counterparts (`counterparts`), and return all by urgency.

    A joined unit holds no more than its parts: such results stay in memory anyway. It has at most
    `limit` initial operands. Hubs and results below `stake` typical initial results are ignored.
    """
    groups = counterparts(graph)
    if not groups:
        return list(units)
    least = stake * typical_nbytes(graph, [i for unit in units for i in unit.operands])
    maker = _makers(graph, units, hub)
    joined: dict[int, set[int]] = {n: {n} for n in range(len(units))}
    for group in groups:
        own = {maker[i] for i in group if maker[i] >= 0 and graph.nbytes[i] >= least}
        parts = {id(joined[n]): joined[n] for n in own}
        merged: set[int] = set().union(*parts.values()) if parts else set()
        if len(parts) > 1 and sum(len(units[n].operands) for n in merged) <= limit:
            joined.update(dict.fromkeys(merged, merged))
    unique = {id(found): found for found in joined.values()}
    made = [
        Unit(tuple(sorted(i for n in found for i in units[n].operands)))
        for found in unique.values()
    ]
    return sorted(made, key=lambda unit: unit.operands[0])


def counterparts(graph: OperandGraph) -> list[list[int]]:
    """Return groups of final operands with equal indices in equally chunked arrays, by keys."""
    layers: dict[Hashable, dict[tuple[Hashable, ...], int]] = {}
    starts = graph.dependents.starts
    for i, key in enumerate(graph.keys):
        if starts[i] != starts[i + 1] or i in graph.kept:
            continue
        if isinstance(key, tuple) and len(key) > 1:
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


def _makers(graph: OperandGraph, units: Sequence[Unit], hub: bytes) -> list[int]:
    """Return for each operand the unit that produces all its inputs, or -1."""
    maker = [-1] * len(graph)
    for number, unit in enumerate(units):
        for i in unit.operands:
            maker[i] = number
    for i, inputs in enumerate(graph.inputs):
        if inputs and maker[i] < 0:
            found = {maker[j] for j in inputs if not hub[j]}
            if len(found) == 1:
                maker[i] = found.pop()
    return maker
