"""Joins units whose results are read together later."""

from __future__ import annotations

from collections.abc import Sequence

from dask_marsched.core.counterparts import counterparts
from dask_marsched.core.graph import OperandGraph, typical_nbytes
from dask_marsched.core.plan import Unit


def join_counterparts(
    graph: OperandGraph, units: Sequence[Unit], hub: bytes, *, stake: float, limit: int
) -> list[Unit]:
    """Join the units that produce counterparts, chunks at the same place of equally chunked arrays.

    Such results stay in memory anyway and units run one after the other, so a joined unit holds no
    more than its parts.

    Parameters
    ----------
    graph, units
        The graph and its units, bound to no worker.
    hub
        Flags of hubs, which are ignored.
    stake
        Least size of a counterpart, in typical initial results.
    limit
        Most initial operands in a joined unit.

    Returns
    -------
    list of Unit
        The units, the most urgent first.
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
