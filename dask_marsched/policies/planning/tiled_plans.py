"""Whether products are run in tiles: a forecast with them beside one without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.plan import Unit, WorkerSlot
from dask_marsched.policies.planning.plan_search import Forecaster, cost
from dask_marsched.policies.planning.tiles import find_tiles

#: Operands of a graph that is cut into tiles, at most. A part of it does not tell of a whole, and
#: to forecast more takes seconds.
_MOST = 50_000
#: What tiles may hold against stock Dask: safely, and if the plan without them holds hardly less.
#: Of twelve products on 16 to 100 workers nine were forecast within 15 % of what they held, two too
#: high, one too low (0.9 for 1.2).
_SAFE, _MOST_OF_STOCK = 0.9, 1.1
#: What tiles may hold against the plan without them, beyond what is safe. Six products forecast at
#: 1.2 to 1.3 on 16 and 24 workers held 0.8 to 1.05 of it.
_MORE = 1.3
#: What the plan without tiles holds in simulation against its forecast, where blocks meet those of
#: the same matrix: 1.1 to 1.7 times as much on 16 to 40 workers, more on 100.
_FORECAST_LOW = 1.4


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
    if after.peak <= _SAFE * stock.peak:
        before = replace(before, peak=_FORECAST_LOW * before.peak)
    elif after.peak > max(before.peak, min(_MOST_OF_STOCK * stock.peak, _MORE * before.peak)):
        return units
    return made if cost(after, stock) < cost(before, stock) else units
