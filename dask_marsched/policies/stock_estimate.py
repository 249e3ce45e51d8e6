"""Estimates the bytes that stock placement would move, for display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.plan import Unit
from dask_marsched.policies.planning.plan_search import Forecaster

MOST = 2000  #: Most operands that are forecast: two forecasts of 2,000 take about 40 ms.


@dataclass(frozen=True, slots=True)
class StockEstimate:
    """Forecasts of a graph or of its first operands."""

    stock: float  #: Bytes that stock Dask would move.
    plan: float  #: Bytes that the plan moves.
    operands: int  #: Number of operands in the forecast.
    known: float  #: Share of their sizes that were known, from 0 to 1.


def estimate(graph: OperandGraph, units: Sequence[Unit], threads: Sequence[int]) -> StockEstimate:
    """Forecast the bytes moved by stock Dask and by a plan, on workers with these threads."""
    n = len(graph)
    run = Forecaster(graph, list(threads))
    stock, plan = run.stock(), run.plan(units)
    known = sum(graph.known) / n if n else 0.0
    return StockEstimate(stock.moved, plan.moved, n, known)
