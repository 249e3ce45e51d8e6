"""An estimate of the bytes that stock placement would move, for those who look on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.plan import Unit
from dask_marsched.policies.planning.forecast import forecast

#: Operands that are forecast; two forecasts of so many take about 40 ms.
MOST = 2000


@dataclass(frozen=True, slots=True)
class StockEstimate:
    """What two forecasts say of a graph, or of its first operands.

    Attributes
    ----------
    stock
        Bytes that stock Dask is forecast to move of what was forecast.
    plan
        Bytes that the plan is forecast to move of the same.
    operands
        Operands that were forecast: all, or the first ones.
    known
        Share of their sizes that were known, from 0 to 1.
    """

    stock: float
    plan: float
    operands: int
    known: float


def estimate(graph: OperandGraph, units: Sequence[Unit], threads: Sequence[int]) -> StockEstimate:
    """Forecast a graph as stock Dask would place it and by its plan.

    Parameters
    ----------
    graph
        The graph, or its first operands.
    units
        The plan.
    threads
        The threads of each worker, at least one worker.
    """
    n = len(graph)
    roots = [Unit((i,)) for i in graph if not graph.inputs[i]]
    stock = forecast(graph, roots, threads, like_stock=True)
    plan = forecast(graph, units, threads)
    known = sum(graph.known) / n if n else 0.0
    return StockEstimate(stock.moved, plan.moved, n, known)
