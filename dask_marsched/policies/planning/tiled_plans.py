"""Runs products in tiles if a forecast says that this is better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.plan import Unit, WorkerSlot
from dask_marsched.policies.planning.plan_search import Forecaster, cost
from dask_marsched.policies.planning.tiles import find_tiles

#: Most operands of a graph that is tiled: a part is not representative, and forecasts take long.
_MOST = 50_000
#: Peaks of tiles relative to stock Dask that are safe, and allowed. Of twelve products on 16 to
#: 100 workers nine were forecast within 15 %, two too high, one too low (0.9 instead of 1.2).
_SAFE, _MOST_OF_STOCK = 0.9, 1.1
#: Allowed peak of tiles relative to the plan without, beyond the safe peak. Six products forecast
#: at 1.2 to 1.3 on 16 and 24 workers held 0.8 to 1.05 of it.
_MORE = 1.3
#: Correction of the plan without tiles: where blocks of one matrix meet, it held 1.1 to 1.7 times
#: its forecast in simulation on 16 to 40 workers, more on 100.
_FORECAST_LOW = 1.4


def with_tiles(graph: OperandGraph, units: list[Unit], workers: Sequence[WorkerSlot]) -> list[Unit]:
    """Return the plan with products in tiles if it is forecast to be better, else `units`.

    The tiled plan must cost less (`plan_search.cost`) and must not hold much more than `units` or
    stock Dask.
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
