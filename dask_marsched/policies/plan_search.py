"""The choice of a bound on the memory of units, by a forecast for each candidate.

A low bound keeps memory at what the global order of execution needs and lets bytes move; a high
one keeps together what meets, and lets each worker open a front of its own. Which bound is best
depends on the graph: where a whole column fits into a unit it is closed early and memory *sinks*;
one chunk less, and it only waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.plan import Unit, WorkerSlot
from dask_marsched.policies.forecast import Forecast, forecast

#: Bounds that are tried, in typical initial results.
CANDIDATES = (4.0, 6.0, 8.0, 12.0, 16.0, 20.0, 24.0, 32.0, 64.0)
#: Operands of a graph that are forecast: all up to the first number, else one in so many.
_FEW, _ONE_IN = 2000, 40
#: Workers that a part of a graph is forecast on, at least.
_LEAST_WORKERS = 8
#: A plan may hold as much as stock Dask would, or this times the least of all plans.
_TOLERANCE = 1.1
#: Bytes below this part of stock's do not count any more.
_LEAST_MOVED = 0.01
#: Weights of memory and of time against bytes moved, in logarithms.
_MEMORY, _TIME = 2.0, 2.0


def sample(
    graph: OperandGraph, workers: Sequence[WorkerSlot]
) -> tuple[OperandGraph, Sequence[WorkerSlot]]:
    """Return the part of a graph that is forecast, and on which workers.

    It is the whole graph unless that is large: to plan it nine times would take longer than Dask
    takes to read it. What the part leaves out counts as read by nobody.
    """
    count = min(len(graph), max(_FEW, len(graph) // _ONE_IN))
    part = math.ceil(len(workers) * count / max(1, len(graph)))
    return graph.head(count), workers[: max(part, _LEAST_WORKERS)]


def choose_bound(
    graph: OperandGraph,
    workers: Sequence[WorkerSlot],
    plan: Callable[[float], list[Unit]],
) -> tuple[float, list[Unit]]:
    """Choose the bound for a graph, and return it with its plan.

    Parameters
    ----------
    graph
        The graph, or a sample of it; its sizes are known.
    workers
        The workers, at least one.
    plan
        Makes the plan for a bound.

    Returns
    -------
    float, list of Unit
        Of the bounds whose plan does not hold more than stock Dask would, or hardly more than
        the best plan, the one that moves least, weighed with what it holds and how long it
        takes.
    """
    plans: dict[float, list[Unit]] = {}
    for bound in CANDIDATES:
        units = plan(bound)
        if not plans or units != list(plans.values())[-1]:
            plans[bound] = units
    if len(plans) == 1:
        return next(iter(plans.items()))
    count, threads = len(graph), [w.nthreads or 1 for w in workers]
    alone = [Unit((i,)) for unit in units for i in unit.operands]
    stock = forecast(graph, count, alone, threads, like_stock=True)
    found = {bound: forecast(graph, count, units, threads) for bound, units in plans.items()}
    most = max(stock.peak, _TOLERANCE * min(f.peak for f in found.values()))
    best = min(
        (bound for bound, f in found.items() if f.peak <= most),
        key=lambda bound: (_cost(found[bound], stock), bound),
    )
    return best, plans[best]


def _cost(plan: Forecast, stock: Forecast) -> float:
    moved = max(plan.moved, _LEAST_MOVED * stock.moved, 1.0) / max(stock.moved, 1.0)
    return (
        math.log(moved)
        + _MEMORY * math.log(max(plan.peak, 1.0) / max(stock.peak, 1.0))
        + _TIME * math.log(plan.makespan / stock.makespan)
    )
