from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.core.graph import Edges, OperandGraph
from dask_marsched.core.plan import Unit, WorkerSlot
from dask_marsched.core.roles import roles
from dask_marsched.policies.assignment import BoundedUnits
from dask_marsched.policies.dispatch_pace import SCHEDULER_TIME
from dask_marsched.policies.planning import plan_search
from dask_marsched.policies.planning.clustering import Clustering
from dask_marsched.policies.planning.forecast import LINK, Forecaster, PlanForecast
from dask_marsched.policies.planning.plan_search import (
    CANDIDATES,
    SIZES,
    PlanChecks,
    UnitBounds,
    check_bounds,
    choose_bounds,
)
from tests.graphs import forecast, graph, operand_graphs, pairwise, tree


def workers(*nthreads: int, hosts: int = 1) -> list[WorkerSlot]:
    return [WorkerSlot(f"tcp://{i}", n, host=str(i % hosts)) for i, n in enumerate(nthreads)]


def stock(g: OperandGraph, threads: list[int], link: float = LINK) -> PlanForecast:
    roots = [Unit((i,)) for i in g if not g.inputs[i]]
    return forecast(g, roots, threads, like_stock=True, link=link)


def planner(g: OperandGraph, limit: int) -> Callable[[UnitBounds], list[Unit]]:
    role = roles(g)

    def plan(bounds: UnitBounds) -> list[Unit]:
        most = min(limit, bounds.size or limit)
        groups = Clustering(g, role, stake=0.15).groups(kappa=bounds.kappa, limit=most)
        return sorted((Unit(tuple(group)) for group in groups), key=lambda u: u.operands[0])

    return plan


def columns(rows: int, count: int) -> OperandGraph:
    """Columns of chunks, read row by row, each summed up in pairs: where they fit, memory sinks."""
    inputs: dict[str, list[str]] = {}
    for row in range(rows):
        for column in range(count):
            inputs[f"x{row}.{column}"] = []
            if row:
                before = "x0" if row == 1 else f"s{row - 1}"
                inputs[f"s{row}.{column}"] = [f"{before}.{column}", f"x{row}.{column}"]
    return graph(inputs)


def thin_columns(rows: int, count: int) -> OperandGraph:
    """Sums over columns of chunks, in trees of four, column by column."""
    inputs: dict[str, list[str]] = {}
    for column in range(count):
        level = [f"x{column}.{row}" for row in range(rows)]
        inputs |= {key: [] for key in level}
        depth = 0
        while len(level) > 1:
            depth += 1
            joined = [f"s{column}.{depth}.{i}" for i in range(0, len(level), 4)]
            for at, name in zip(range(0, len(level), 4), joined, strict=True):
                inputs[name] = level[at : at + 4]
            level = joined
    return graph(inputs, {key: {"x": 8e6, "s": 8e6}[key[0]] for key in inputs})


@given(
    g=operand_graphs(),
    nthreads=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    limit=st.integers(1, 40),
)
def test_no_plan_is_chosen_that_holds_more_than_stock_or_hardly_more_than_the_leanest(
    g: OperandGraph, nthreads: list[int], limit: int
) -> None:
    plan = planner(g, limit)
    bounds, units = choose_bounds(g, workers(*nthreads), plan)
    assert bounds.kappa in CANDIDATES
    assert bounds.size in (None, *SIZES)
    assert units == plan(bounds)
    found = [forecast(g, plan(UnitBounds(kappa)), nthreads) for kappa in CANDIDATES]
    held = forecast(g, units, nthreads).peak
    assert held <= max(stock(g, nthreads).peak, 1.1 * min(f.peak for f in found))
    assert choose_bounds(g, workers(*nthreads), plan) == (bounds, units)


@pytest.mark.parametrize("g", [tree(64, 8), columns(6, 12), pairwise(20)])
def test_the_chosen_plan_is_the_best_admissible_one(g: OperandGraph) -> None:
    """Against a bound that holds no more and takes no longer, it moves no more."""
    plan = planner(g, 16)
    _, units = choose_bounds(g, workers(1, 1, 1), plan)
    chosen = forecast(g, units, [1, 1, 1])
    least = 0.01 * stock(g, [1, 1, 1]).moved
    for kappa in CANDIDATES:
        other = forecast(g, plan(UnitBounds(kappa)), [1, 1, 1])
        if other.peak <= chosen.peak and other.makespan <= chosen.makespan:
            assert chosen.moved <= max(other.moved, least)


def test_between_hosts_a_plan_is_lean_with_fast_links_too() -> None:
    """Whole columns hold less than stock Dask where its copies wait long, else more."""
    g, threads = thin_columns(24, 40), [1] * 16
    plan = planner(g, 60)
    slow, fast = (
        choose_bounds(g, workers(*threads, hosts=hosts), plan)[1] for hosts in (1, len(threads))
    )
    most = 1.15 * stock(g, threads, 1e9).peak
    assert forecast(g, slow, threads, link=1e9).peak > most
    assert forecast(g, fast, threads, link=1e9).peak <= most
    assert forecast(g, fast, threads).moved < 0.5 * stock(g, threads).moved


def checked(g: OperandGraph, units: list[Unit], threads: list[int]) -> PlanForecast:
    return forecast(g, units, threads, link=1e9, scheduler_time=SCHEDULER_TIME)


@pytest.mark.extended
def test_a_choice_is_checked_against_stock_dask_with_fast_links() -> None:
    g, threads = thin_columns(24, 40), [1] * 16
    plan = planner(g, 60)
    slots = workers(*threads, hosts=16)
    roots = [Unit((i,)) for i in g if not g.inputs[i]]
    most = forecast(
        g, roots, threads, like_stock=True, link=1e9, scheduler_time=SCHEDULER_TIME
    ).peak
    found = {k: checked(g, plan(UnitBounds(k)), threads) for k in CANDIDATES}
    assert found[CANDIDATES[0]].peak <= most < found[CANDIDATES[-1]].peak
    for kappa in CANDIDATES:
        kept = check_bounds(g, slots, lambda bounds, _: plan(bounds), UnitBounds(kappa)).kappa
        fit = [k for k in CANDIDATES if k <= kappa and found[k].peak <= most]
        assert kept in fit
        # As lean as costs hardly any bytes.
        assert found[kept].moved <= 1.1 * min(found[k].moved for k in fit)
        leaner = [k for k in fit if k < kept]
        assert not leaner or found[leaner[-1]].moved > 1.1 * found[kept].moved


def test_where_no_bounds_fit_those_that_hold_least_are_taken() -> None:
    g, slots = running_sum(80), workers(1, 1, 1, 1, hosts=4)
    plan = planner(g, 20)
    found = check_bounds(g, slots, lambda bounds, _: plan(bounds), UnitBounds(16.0, 2))
    peaks = [checked(g, plan(UnitBounds(k, 2)), [1] * 4).peak for k in CANDIDATES if k <= 16]
    assert found.size == 2
    assert checked(g, plan(found), [1] * 4).peak == min(peaks)


def test_a_graph_that_is_planned_again_is_checked_again_only_if_it_is_another(
    forecasts: list[tuple[int, list[int], bool]],
) -> None:
    g, checks = thin_columns(24, 20), PlanChecks()

    def made(g: OperandGraph, chosen: UnitBounds, count: int = 16) -> int:
        plan, slots = planner(g, 60), workers(*[1] * count, hosts=16)
        forecasts.clear()
        found = checks.bounds(g, slots, lambda bounds, _: plan(bounds), chosen)
        assert found.kappa <= chosen.kappa
        return len(forecasts)

    def grown(share: float) -> OperandGraph:
        return g.with_nbytes([share * nbytes for nbytes in g.nbytes], g.known)

    assert made(g, UnitBounds(24.0)) > 1
    assert made(g, UnitBounds(24.0)) == 0
    assert made(grown(1.2), UnitBounds(32.0)) == 0
    assert made(grown(1.3), UnitBounds(32.0)) > 1
    assert made(grown(1.3), UnitBounds(CANDIDATES[0])) > 1  # lower bounds are chosen
    assert made(grown(1.3), UnitBounds(CANDIDATES[0], 8)) > 1
    assert made(grown(1.3), UnitBounds(CANDIDATES[0], 8), count=15) > 1
    assert made(thin_columns(24, 21), UnitBounds(CANDIDATES[0], 8), count=15) > 1


def test_a_large_graph_is_checked_once(
    forecasts: list[tuple[int, list[int], bool]],
) -> None:
    g = thin_columns(24, 80)
    policy, slots = BoundedUnits(), workers(*[1] * 20, hosts=20)
    units = policy.assign(g, slots)
    assert (len(g), [1] * 20, True) in forecasts
    forecasts.clear()
    learned = g.with_nbytes([1.1 * nbytes for nbytes in g.nbytes], g.known)
    assert policy.assign(learned, slots) == units
    assert forecasts
    assert all(count < len(g) for count, *_ in forecasts)


def test_different_graphs_get_different_bounds() -> None:
    trees, sums = tree(64, 8), columns(6, 12)
    bounds = [choose_bounds(g, workers(1, 1), planner(g, 32))[0] for g in (trees, sums)]
    assert bounds[0] != bounds[1], bounds


def running_sum(steps: int) -> OperandGraph:
    """Chunks, each added to what was summed up before, and a number read off each sum."""
    inputs: dict[str, list[str]] = {}
    for i in range(steps):
        inputs |= {f"x{i}": [], f"s{i}": [f"s{i - 1}", f"x{i}"] if i else ["x0"]}
        inputs[f"r{i}"] = [f"s{i}", f"x{i}"]
    return graph(inputs, {key: {"x": 8e6, "s": 2e6, "r": 8.0}[key[0]] for key in inputs})


def test_where_each_unit_waits_for_the_one_before_units_are_short() -> None:
    g, four = running_sum(80), workers(1, 1, 1, 1)
    plan = planner(g, 20)
    bounds, units = choose_bounds(g, four, plan)
    assert bounds.size in SIZES
    assert max(len(u.operands) for u in units) == bounds.size
    long = forecast(g, plan(UnitBounds(bounds.kappa)), [1] * 4)
    assert forecast(g, units, [1] * 4).peak < 0.9 * long.peak


@pytest.fixture
def forecasts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[int], bool]]:
    """How many operands were forecast on which threads, and whether as in stock Dask."""
    made: list[tuple[int, list[int], bool]] = []

    plan = Forecaster.plan

    def watched(of: Forecaster, *args: Any, like_stock: bool = False) -> PlanForecast:
        made.append((len(of.graph), list(of.threads), like_stock))
        return plan(of, *args, like_stock=like_stock)

    monkeypatch.setattr(Forecaster, "plan", watched)
    return made


def test_where_nothing_belongs_together_nothing_is_forecast(
    forecasts: list[tuple[int, list[int], bool]],
) -> None:
    g = graph({f"x{i}": [] for i in range(6)} | {f"y{i}": [f"x{i}"] for i in range(6)})
    bounds, units = choose_bounds(g, workers(1, 1), planner(g, 12))
    assert bounds == (CANDIDATES[0], None)
    assert len(units) == 6
    assert forecasts == []


def test_each_plan_is_forecast_once_and_stock_once(
    forecasts: list[tuple[int, list[int], bool]],
) -> None:
    g = tree(64, 8)
    plan = planner(g, 64)
    different = {tuple(plan(UnitBounds(kappa))) for kappa in CANDIDATES}
    assert len(different) > 1
    choose_bounds(g, workers(1, 2), plan)
    assert [like_stock for *_, like_stock in forecasts].count(True) == 1
    assert len(forecasts) == 1 + len(different)
    assert {(count, tuple(threads)) for count, threads, _ in forecasts} == {(len(g), (1, 2))}


@pytest.mark.parametrize(("size", "forecast_of"), [(1800, 1800), (4500, 2000), (100_800, 2520)])
def test_of_a_large_graph_a_part_is_forecast_on_a_part_of_the_workers(
    size: int, forecast_of: int
) -> None:
    # Every ninth operand joins the eight before.
    inputs = Edges.of(range(i - 8, i) if i % 9 == 8 else () for i in range(size))
    g = OperandGraph(range(size), inputs, [8.0] * size, b"\1" * size)
    part, some = plan_search.sample(g, workers(*[1] * 400))
    assert len(part) == forecast_of
    assert [part.inputs[i] for i in part] == [g.inputs[i] for i in part]
    assert len(some) == max(8, -(-400 * forecast_of // size))


def test_a_graph_of_nothing_has_a_plan_of_nothing() -> None:
    empty = OperandGraph([], Edges([0], []), [], b"")
    assert BoundedUnits().assign(empty, workers(1)) == []


def test_where_all_sizes_are_zero_any_plan_will_do() -> None:
    g = graph(
        {f"x{i}": [] for i in range(8)} | {"all": [f"x{i}" for i in range(8)]},
        {f"x{i}": 0.0 for i in range(8)} | {"all": 0.0},
    )
    _, units = choose_bounds(g, workers(1, 1), planner(g, 8))
    assert sorted(i for unit in units for i in unit.operands) == list(range(8))
