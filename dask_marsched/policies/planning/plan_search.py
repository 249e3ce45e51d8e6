"""The choice of the bounds of units, by a forecast for each candidate.

A low bound on memory keeps it at what the global order of execution needs and lets bytes move; a
high one keeps together what meets, and lets each worker open a front of its own. Which bound is
best depends on the graph: where a whole column fits into a unit it is closed early and memory
*sinks*; one chunk less, and it only waits.

In a running sum no bound on the memory of a unit helps. Each unit alone holds next to nothing, but
it waits for the one before it. There, units have to be short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.plan import Unit, WorkerSlot
from dask_marsched.policies.dispatch_pace import SCHEDULER_TIME
from dask_marsched.policies.planning.forecast import LINK, PlanForecast, forecast

#: Bounds that are tried, in typical initial results.
CANDIDATES = (4.0, 6.0, 8.0, 12.0, 16.0, 20.0, 24.0, 32.0, 64.0)
#: Initial operands of a unit that are tried where every bound holds more than stock Dask would.
SIZES = (8, 4, 2)
#: Operands of a graph that are forecast: all up to the first number, else one in so many.
FEW, _ONE_IN = 2000, 40
#: Operands of a graph that a choice is checked on.
CHECKED = 10_000
#: Operands of a graph that stock Dask is forecast on, where no plan is.
_MOST = 25_000
#: Workers that a part of a graph is forecast on, at least.
_LEAST_WORKERS = 8
#: A plan may hold as much as stock Dask would, or this times the least of all plans.
_TOLERANCE = 1.1
#: Bytes a second that a worker receives from another host, at best.
FAST_LINK = 1e9
#: What a plan may hold with such links, against stock Dask. They shorten the time that copies
#: wait for what they are joined with, of which stock Dask has more: a peak that is lower with slow
#: links may be higher with fast ones. The forecast of stock Dask is low: of 18 workloads on
#: 16 workers the twin's workers held 1.33 times as much (geometric mean), summing thin columns 1.39
#: times. With 1.15 that moved 0.20 of stock's bytes instead of 0.08; the others did not change.
_FAST_TOLERANCE = 1.25
#: Bytes below this part of stock's do not count any more.
_LEAST_MOVED = 0.01
#: Weights of memory and of time against bytes moved, in logarithms.
_MEMORY, _TIME = 2.0, 2.0
#: Bytes moved that a leaner plan is worth, against the plan that moves least.
HARDLY_MORE = 1.1
#: A check stands as long as the bytes of its graph have not changed by more than this part of them.
_MUCH = 0.25
#: Costs that differ by less are the same: a forecast is not better than that.
_SAME = 0.15


def sample(
    graph: OperandGraph, workers: Sequence[WorkerSlot]
) -> tuple[OperandGraph, Sequence[WorkerSlot]]:
    """Return the part of a graph that is forecast, and on which workers.

    It is the whole graph unless that is large: to plan it nine times would take longer than Dask
    takes to read it. What the rest reads of the part stays in memory: of deviations from a mean the
    first part is nothing but the source and its sums.
    """
    count = min(len(graph), sample_size(len(graph)))
    part = math.ceil(len(workers) * count / max(1, len(graph)))
    return graph.head(count), workers[: max(part, _LEAST_WORKERS)]


def sample_size(operands: int) -> int:
    """Return how many operands of a graph are forecast, where there are more."""
    return max(FEW, operands // _ONE_IN)


def stock_peak(graph: OperandGraph, workers: Sequence[WorkerSlot], most: int = _MOST) -> float:
    """Forecast what stock Dask holds at most, in bytes, with fast links between hosts.

    Parameters
    ----------
    graph
        The graph; of one with more operands than ``most`` the first ones are forecast, on as many
        fewer workers, which are taken to hold as much each.
    workers
        The workers, at least one.
    most
        Operands that are forecast.
    """
    part = graph.head(min(len(graph), most))
    some = workers[: max(1, math.ceil(len(workers) * len(part) / max(1, len(graph))))]
    found = Forecaster(part, [w.nthreads or 1 for w in some]).stock(FAST_LINK)
    return found.peak * len(workers) / len(some)


class UnitBounds(NamedTuple):
    """Bounds of a unit: on its memory in typical initial results, on its initial operands."""

    kappa: float
    size: int | None = None


def choose_bounds(
    graph: OperandGraph,
    workers: Sequence[WorkerSlot],
    plan: Callable[[UnitBounds], list[Unit]],
) -> tuple[UnitBounds, list[Unit]]:
    """Choose the bounds for a graph, and return them with its plan.

    Parameters
    ----------
    graph
        The graph, or a sample of it; its sizes are known.
    workers
        The workers, at least one.
    plan
        Makes the plan for bounds.

    Returns
    -------
    UnitBounds, list of Unit
        Of the bounds whose plan does not hold more than stock Dask would, or hardly more than
        the leanest plan, with fast links between hosts neither, those that move least, weighed
        with what they hold and how long they take; of those that hardly differ in this the
        leanest. Where there are several hosts the highest of those that make this plan.
    """
    highest = plan(UnitBounds(CANDIDATES[-1]))
    if len(highest) == sum(len(unit.operands) for unit in highest):
        return UnitBounds(CANDIDATES[0]), highest  # nothing belongs together: any bound is the same
    plans: dict[UnitBounds, list[Unit]] = {}
    alike: dict[UnitBounds, UnitBounds] = {}
    for kappa in CANDIDATES:
        units = highest if kappa == CANDIDATES[-1] else plan(UnitBounds(kappa))
        if not plans or units != list(plans.values())[-1]:
            plans[UnitBounds(kappa)] = units
        alike[UnitBounds(kappa)] = list(plans)[-1]
    run = Forecaster(graph, [w.nthreads or 1 for w in workers])
    stock = run.stock()
    found = {bounds: run.plan(units) for bounds, units in plans.items()}
    leanest = min(found, key=lambda bounds: (found[bounds].peak, bounds.kappa))
    if found[leanest].peak > stock.peak:
        for size in SIZES:
            bounds = UnitBounds(leanest.kappa, size)
            plans[bounds] = plan(bounds)
            found[bounds] = run.plan(plans[bounds])
    most = max(stock.peak, _TOLERANCE * min(f.peak for f in found.values()))
    costs = {bounds: cost(f, stock) for bounds, f in found.items() if f.peak <= most}
    if len({w.host for w in workers}) > 1:
        lean = _lean_with_fast_links(run, {bounds: plans[bounds] for bounds in costs})
        costs = {bounds: costs[bounds] for bounds in lean}
    least = min(costs.values())
    # Of those that cost the same the leanest: memory is what kills workers.
    best = min(
        (bounds for bounds, cost in costs.items() if cost <= least + _SAME),
        key=lambda bounds: (found[bounds].peak, costs[bounds], bounds.kappa),
    )
    if len({w.host for w in workers}) > 1:
        # What is checked on more of the graph: higher bounds may make the same plan of this part.
        return max((k for k in alike if alike[k] == best), default=best), plans[best]
    return best, plans[best]


def check_bounds(
    graph: OperandGraph,
    workers: Sequence[WorkerSlot],
    plan: Callable[[UnitBounds, OperandGraph], list[Unit]],
    chosen: UnitBounds,
) -> UnitBounds:
    """Check on a larger part of a graph what was chosen on a small one.

    On few workers little is in wait between them, and the scheduler keeps up with them. Of means of
    products over time bounds of 16 were forecast to hold 1.10 of stock Dask's peak on 21 workers,
    1.38 on all 100, and held 1.55. Where all wait for the scheduler stock Dask holds less, for its
    workers are idle: of means by month on 100 workers it was forecast to hold 20 GB, 12 with the
    scheduler's time, and held 11.

    Parameters
    ----------
    graph
        The whole graph.
    workers
        All workers, on several hosts.
    plan
        Makes the plan of a graph for bounds.
    chosen
        The bounds chosen.

    Returns
    -------
    UnitBounds
        Of those chosen and the next lower ones that hold no more than stock Dask would with fast
        links, the leanest that moves hardly more than the first; if there is none, those that
        hold least.
    """
    part = graph.head(min(len(graph), CHECKED))
    some = workers[: math.ceil(len(workers) * len(part) / len(graph))]
    # The scheduler is that of all workers: it has so much less time for some of them.
    scheduler_time = SCHEDULER_TIME * len(workers) / len(some)
    run = Forecaster(part, [w.nthreads or 1 for w in some], scheduler_time)
    most = run.stock(FAST_LINK).peak
    found: dict[UnitBounds, PlanForecast] = {}
    best: UnitBounds | None = None
    least = math.inf
    before: list[Unit] = []
    for kappa in sorted((k for k in CANDIDATES if k <= chosen.kappa), reverse=True):
        bounds = UnitBounds(kappa, chosen.size)
        units = plan(bounds, part)
        if units == before:
            continue
        before, found[bounds] = units, run.plan(units, FAST_LINK)
        moved, peak = found[bounds].moved, found[bounds].peak
        if moved > HARDLY_MORE * least:
            break
        if peak <= most:
            best, least = bounds, min(least, moved)
    return best or min(found, key=lambda bounds: found[bounds].peak)


class PlanChecks:
    """What was checked for a graph, once for each: it takes longer than all else in planning.

    A graph whose sizes were learned is planned again. What was found for it stays in force unless
    its bytes are others by more than a quarter, or lower bounds are chosen. A graph is known by its
    size and its first and last key: it is not kept alive for this.

    Several threads may look at the same time: each works on the record that it has found or made.
    """

    def __init__(self) -> None:
        self._last = _Checked((), 0.0)

    def bounds(
        self,
        graph: OperandGraph,
        workers: Sequence[WorkerSlot],
        plan: Callable[[UnitBounds, OperandGraph], list[Unit]],
        chosen: UnitBounds,
    ) -> UnitBounds:
        """Return what `check_bounds` returns, or what it returned for this graph before."""
        last = self._look_at(graph, workers)
        found = last.bounds
        if found is None or found.size != chosen.size or found.kappa > chosen.kappa:
            found = last.bounds = check_bounds(graph, workers, plan, chosen)
            last.nbytes = sum(graph.nbytes)
        return found

    def runs(
        self,
        graph: OperandGraph,
        workers: Sequence[WorkerSlot],
        choose: Callable[[], int],
    ) -> int:
        """Return what `choose` returns, the runs for each host, or what it returned before."""
        last = self._look_at(graph, workers)
        if last.runs is None:
            last.runs = choose()
        return last.runs

    def _look_at(self, graph: OperandGraph, workers: Sequence[WorkerSlot]) -> _Checked:
        """Forget what was found, if it was for another graph."""
        ends = (graph.keys[0], graph.keys[-1]) if len(graph) else ()
        of = (*ends, len(graph), len(graph.inputs.flat), len(workers))
        nbytes = sum(graph.nbytes)
        last = self._last
        if of != last.of or abs(nbytes - last.nbytes) > _MUCH * last.nbytes:
            last = self._last = _Checked(of, nbytes)
        return last


@dataclass(eq=False)
class _Checked:
    """What was found for a graph with so many bytes."""

    of: tuple[Hashable, ...]
    nbytes: float
    bounds: UnitBounds | None = None
    runs: int | None = None


class Forecaster(NamedTuple):
    """Forecasts of one graph on the same workers."""

    graph: OperandGraph
    threads: list[int]
    scheduler_time: float = 0.0
    hosts: Sequence[Hashable] = ()

    def stock(self, link: float = LINK) -> PlanForecast:
        """Forecast stock Dask, which withholds what reads nothing."""
        roots = [Unit((i,)) for i in self.graph if not self.graph.inputs[i]]
        return self._forecast(roots, link, like_stock=True)

    def plan(self, units: list[Unit], link: float = LINK) -> PlanForecast:
        """Forecast a plan."""
        return self._forecast(units, link)

    def _forecast(self, units: list[Unit], link: float, like_stock: bool = False) -> PlanForecast:
        return forecast(
            self.graph, units, self.threads,
            like_stock=like_stock, link=link, scheduler_time=self.scheduler_time, hosts=self.hosts,
        )  # fmt: skip


def _lean_with_fast_links(run: Forecaster, plans: dict[UnitBounds, list[Unit]]) -> list[UnitBounds]:
    """Return those plans that do not hold much more than stock Dask if links are fast."""
    peaks = {bounds: run.plan(units, FAST_LINK).peak for bounds, units in plans.items()}
    stock = run.stock(FAST_LINK).peak
    most = max(_FAST_TOLERANCE * stock, _TOLERANCE * min(peaks.values()))
    return [bounds for bounds, peak in peaks.items() if peak <= most]


def cost(plan: PlanForecast, stock: PlanForecast) -> float:
    """Return what a plan costs: the logarithms of its shares of stock's, weighed."""
    moved = max(plan.moved, _LEAST_MOVED * stock.moved, 1.0) / max(stock.moved, 1.0)
    return (
        math.log(moved)
        + _MEMORY * math.log(max(plan.peak, 1.0) / max(stock.peak, 1.0))
        + _TIME * math.log(plan.makespan / stock.makespan)
    )
