"""Chooses the bounds of units, and how many runs of them a host gets, by forecasts.

A low bound on memory moves more bytes. A high one keeps results that meet on one worker, but all
workers hold such results at a time. In a running sum each unit waits for the one before it and
holds little alone, so that no memory bound helps: units have to be short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.plan import Unit, WorkerSlot
from dask_marsched.policies.dispatch_pace import SCHEDULER_TIME
from dask_marsched.policies.planning.forecast import LINK, Forecaster, PlanForecast
from dask_marsched.policies.planning.host_shares import RUNS, cut_into_shares

#: Memory bounds to try, in typical initial results.
CANDIDATES = (4.0, 6.0, 8.0, 12.0, 16.0, 20.0, 24.0, 32.0, 64.0)
SIZES = (8, 4, 2)  #: Sizes of units to try if every memory bound holds more than stock Dask.
#: Graphs of few operands are forecast whole, of larger ones one operand in so many.
FEW_OPERANDS, _ONE_IN = 2000, 40
_CHECKED = 10_000  #: Most operands on which a choice is checked.
_MOST_OPERANDS = 25_000  #: Most operands for a forecast of stock Dask alone.
_LEAST_WORKERS = 8  #: Least workers for a forecast of a part.
_TOLERANCE = 1.1  #: A plan may hold as much as stock Dask, or this times the leanest plan.
_FAST_LINK = 1e9  #: Bytes a second that a worker receives from another host at best.
#: A plan may hold this times stock Dask's peak with such links. That forecast is low: in simulation
#: 18 workloads on 16 workers held 1.33 times as much (geometric mean). With 1.15, sums of thin
#: columns moved 0.20 of stock's bytes instead of 0.08.
_FAST_TOLERANCE = 1.25
_LEAST_MOVED = 0.01  #: Bytes moved below this part of stock Dask's do not count.
_MEMORY, _TIME = 2.0, 2.0  #: Weights of memory and time relative to bytes moved.
NOT_CUT = 0  #: Runs of a plan that is not cut: any worker opens the next unit.
_HARDLY_MORE = 1.1  #: A leaner plan may move this times the bytes of the plan that moves least.
_MUCH = 0.25  #: A check is valid until the bytes of its graph change by more than this part.
_SAME = 0.15  #: Costs that differ by less count as equal, given the accuracy of forecasts.


def sample(
    graph: OperandGraph, workers: Sequence[WorkerSlot]
) -> tuple[OperandGraph, Sequence[WorkerSlot]]:
    """Return the part of a graph that is small enough to plan nine times, and its workers."""
    count = min(len(graph), sample_size(len(graph)))
    part = math.ceil(len(workers) * count / max(1, len(graph)))
    return graph.head(count), workers[: max(part, _LEAST_WORKERS)]


def sample_size(operands: int) -> int:
    """Return how many operands of a larger graph are forecast."""
    return max(FEW_OPERANDS, operands // _ONE_IN)


def stock_peak(
    graph: OperandGraph, workers: Sequence[WorkerSlot], most: int = _MOST_OPERANDS
) -> float:
    """Forecast stock Dask's peak bytes with fast links, scaled from at most `most` operands."""
    part = graph.head(min(len(graph), most))
    some = workers[: max(1, math.ceil(len(workers) * len(part) / max(1, len(graph))))]
    found = Forecaster(part, [w.nthreads or 1 for w in some]).stock(_FAST_LINK)
    return found.peak * len(workers) / len(some)


class UnitBounds(NamedTuple):
    """Bounds of a unit: memory in typical initial results, and number of initial operands."""

    kappa: float
    size: int | None = None


def choose_bounds(
    graph: OperandGraph,
    workers: Sequence[WorkerSlot],
    plan: Callable[[UnitBounds], list[Unit]],
) -> tuple[UnitBounds, list[Unit]]:
    """Choose the bounds for a graph of known sizes and return them with their plan.

    The plan must not hold much more than stock Dask or the leanest plan; with several hosts, this
    must also be so with fast links. Of the plans that cost about as little as the cheapest
    (`cost`), the leanest wins. With several hosts the result is the highest bound that gives it.
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
    # At equal cost the leanest wins, because workers die from lack of memory.
    best = min(
        (bounds for bounds, cost in costs.items() if cost <= least + _SAME),
        key=lambda bounds: (found[bounds].peak, costs[bounds], bounds.kappa),
    )
    if len({w.host for w in workers}) > 1:
        # Higher bounds with the same plan here may differ on more of the graph (`check_bounds`).
        return max((k for k in alike if alike[k] == best), default=best), plans[best]
    return best, plans[best]


def check_bounds(
    graph: OperandGraph,
    workers: Sequence[WorkerSlot],
    plan: Callable[[UnitBounds, OperandGraph], list[Unit]],
    chosen: UnitBounds,
) -> UnitBounds:
    """Check bounds for several hosts on a larger part of the graph than they were chosen on.

    Of `chosen` and lower bounds that hold no more than stock Dask with fast links, return the
    lowest that moves hardly more than the least of them. If there is none, return those that hold
    least.
    Few workers queue few operands: bounds of 16 for means of products over time were forecast at
    1.10 of stock Dask's peak on 21 workers, 1.38 on all 100, and held 1.55. If the scheduler is the
    bottleneck, stock Dask holds less: means by month on 100 workers were forecast at 20 GB, 12 GB
    with the scheduler's time, and held 11 GB.
    """
    part = graph.head(min(len(graph), _CHECKED))
    some = workers[: math.ceil(len(workers) * len(part) / len(graph))]
    # The scheduler serves all workers, so it has less time for these.
    scheduler_time = SCHEDULER_TIME * len(workers) / len(some)
    run = Forecaster(part, [w.nthreads or 1 for w in some], scheduler_time)
    most = run.stock(_FAST_LINK).peak
    found: dict[UnitBounds, PlanForecast] = {}
    best: UnitBounds | None = None
    least = math.inf
    before: list[Unit] = []
    for kappa in sorted((k for k in CANDIDATES if k <= chosen.kappa), reverse=True):
        bounds = UnitBounds(kappa, chosen.size)
        units = plan(bounds, part)
        if units == before:
            continue
        before, found[bounds] = units, run.plan(units, _FAST_LINK)
        moved, peak = found[bounds].moved, found[bounds].peak
        if moved > _HARDLY_MORE * least:
            break
        if peak <= most:
            best, least = bounds, min(least, moved)
    return best or min(found, key=lambda bounds: found[bounds].peak)


def choose_runs(
    graph: OperandGraph,
    workers: Sequence[WorkerSlot],
    plan: Callable[[OperandGraph], list[Unit]],
    least: int = 1,
) -> int:
    """Choose into how many runs for each host, at least `least`, to cut a plan; or `NOT_CUT`.

    Among the numbers whose plan holds no more than stock Dask this is the lowest, or a higher one
    that holds clearly less and hardly moves more between hosts; else the one that holds least. Of a
    large graph the first operands are forecast, on fewer hosts.

    Long runs keep results that meet on one host. But each host then holds results of its own (a
    front) and may wait long for another's: means by month on 25 hosts of 4 workers, half a month in
    a run, held 2.3 times as much as stock Dask.
    """
    part = graph.head(min(len(graph), _CHECKED))
    some = _some_hosts(workers, len(part) / max(1, len(graph)))
    # The scheduler serves all workers, so it has less time for these.
    scheduler_time = SCHEDULER_TIME * len(workers) / len(some)
    threads, hosts = [w.nthreads or 1 for w in some], [w.host for w in some]
    run = Forecaster(part, threads, scheduler_time, hosts)
    most = run.stock(_FAST_LINK).peak
    units = plan(part)
    peaks: dict[int, float] = {}
    best, fewest = None, math.inf
    for runs in [*(m for m in RUNS if m >= least), NOT_CUT]:
        cut = cut_into_shares(units, some, runs) if runs != NOT_CUT else units
        found = run.plan(cut, _FAST_LINK)
        peaks[runs] = found.peak
        if found.between_hosts > _HARDLY_MORE * fewest:
            break
        if found.peak <= most and (best is None or _HARDLY_MORE * found.peak < peaks[best]):
            best, fewest = runs, min(fewest, found.between_hosts)
    return min(peaks, key=peaks.__getitem__) if best is None else best


def _some_hosts(workers: Sequence[WorkerSlot], share: float) -> list[WorkerSlot]:
    """Return the workers of the first hosts: a share of all, at least two."""
    hosts = list(dict.fromkeys(w.host for w in workers))
    chosen = set(hosts[: max(2, math.ceil(share * len(hosts)))])
    return [w for w in workers if w.host in chosen]


class PlanChecks:
    """Remembers the checks of the last graph, the slowest part of planning.

    A check stays valid when sizes are learned, unless the graph's bytes change by more than a
    quarter or lower bounds are chosen. Graphs are identified by size and ends, to keep none alive.
    Threads may share this object: each works on the record it found.
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
        """Return the result of `check_bounds`, remembered for this graph."""
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
        """Return the result of `choose`, the runs for each host, remembered for this graph."""
        last = self._look_at(graph, workers)
        if last.runs is None:
            last.runs = choose()
        return last.runs

    def _look_at(self, graph: OperandGraph, workers: Sequence[WorkerSlot]) -> _Checked:
        """Return the record of this graph, a new one if the last is of another graph."""
        ends = (graph.keys[0], graph.keys[-1]) if len(graph) else ()
        of = (*ends, len(graph), len(graph.inputs.flat), len(workers))
        nbytes = sum(graph.nbytes)
        last = self._last
        if of != last.of or abs(nbytes - last.nbytes) > _MUCH * last.nbytes:
            last = self._last = _Checked(of, nbytes)
        return last


@dataclass(eq=False)
class _Checked:
    """The checks of a graph whose results have this many bytes."""

    of: tuple[Hashable, ...]
    nbytes: float
    bounds: UnitBounds | None = None
    runs: int | None = None


def _lean_with_fast_links(run: Forecaster, plans: dict[UnitBounds, list[Unit]]) -> list[UnitBounds]:
    """Return the bounds whose plans do not hold much more than stock Dask with fast links."""
    peaks = {bounds: run.plan(units, _FAST_LINK).peak for bounds, units in plans.items()}
    stock = run.stock(_FAST_LINK).peak
    most = max(_FAST_TOLERANCE * stock, _TOLERANCE * min(peaks.values()))
    return [bounds for bounds, peak in peaks.items() if peak <= most]


def cost(plan: PlanForecast, stock: PlanForecast) -> float:
    """Return the cost of a plan: the weighted logarithms of its ratios to stock Dask."""
    moved = max(plan.moved, _LEAST_MOVED * stock.moved, 1.0) / max(stock.moved, 1.0)
    return (
        math.log(moved)
        + _MEMORY * math.log(max(plan.peak, 1.0) / max(stock.peak, 1.0))
        + _TIME * math.log(plan.makespan / stock.makespan)
    )


_WORTH_IT = 0.2  #: A search may take this part of the seconds at stake.
#: A graph waits for a search that takes at most this part of the seconds at stake, and this many
#: seconds. Units opened before a search ends are not planned again: with 0.01 s a climatology of
#: 739 tasks held 1.12 of stock Dask's memory instead of 0.85 to 0.99.
_WAITS, _LONGEST = 0.03, 0.2


class Search(Enum):
    """When to search for a better plan than the prompt one."""

    NONE = "none"  #: Not at all: the prompt plan stays.
    BEFORE_START = "now"  #: Before the graph starts.
    IN_BACKGROUND = "beside"  #: In a thread, while the prompt plan is in use.


def seconds_at_stake(graph: OperandGraph, workers: Sequence[WorkerSlot]) -> float:
    """Return how long the workers would take to fetch each result once: a plan saves no more."""
    return sum(graph.nbytes) / (LINK * max(1, len(workers)))


def extent_of_search(effort: float, at_stake: float) -> Search:
    """Return when to search, if the search takes `effort` seconds and saves `at_stake` at most."""
    if effort <= min(_LONGEST, _WAITS * at_stake):
        return Search.BEFORE_START
    return Search.IN_BACKGROUND if effort <= _WORTH_IT * at_stake else Search.NONE
