"""Whether products are run in tiles: a forecast with them beside one without."""

from __future__ import annotations

from collections.abc import Sequence

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.plan import Unit, WorkerSlot
from dask_marsched.policies.plan_search import Forecaster, cost
from dask_marsched.policies.tiles import find_tiles

#: Operands of a graph that is cut into tiles, at most. A part of it does not tell of a whole, and
#: to forecast more takes seconds.
_MOST = 50_000
#: What tiles may hold against stock Dask: what it is forecast to hold is off by a third at times.
_OF_STOCK, _WELL_BELOW = 1.05, 0.75
#: And against the plan without them, unless it is well below stock Dask. This ratio is forecast
#: well: 1.16, 1.27, 1.32 and 0.75 were 1.14, 1.25, 1.34 and 0.74 in simulation.
_MORE = 1.2


def with_tiles(graph: OperandGraph, units: list[Unit], workers: Sequence[WorkerSlot]) -> list[Unit]:
    """Return a plan whose products are run in tiles, where that is forecast to be better.

    Parameters
    ----------
    graph
        The graph.
    units
        Its units, bound to no worker.
    workers
        The workers.

    Returns
    -------
    list of Unit
        The units, the most urgent first; those given where there are no products, or where
        tiles are forecast to cost more (bytes moved, memory and time weighed as for bounds), or to
        hold much more than those given, or more than stock Dask.
    """
    if len(graph) > _MOST:
        return units
    tiles = find_tiles(graph, len(workers))
    if not tiles:
        return units
    tiled = {i for tile in tiles for i in tile}
    rest = (tuple(i for i in unit.operands if i not in tiled) for unit in units)
    made = [Unit(operands) for operands in rest if operands]
    made += [Unit(tile, tile=True) for tile in tiles]
    made.sort(key=lambda unit: unit.operands[0])
    run = Forecaster(graph, [w.nthreads or 1 for w in workers])
    stock, before, after = run.stock(), run.plan(units), run.plan(made)
    most = min(_OF_STOCK * stock.peak, max(_MORE * before.peak, _WELL_BELOW * stock.peak))
    if after.peak > max(most, before.peak):
        return units
    return made if cost(after, stock) < cost(before, stock) else units
