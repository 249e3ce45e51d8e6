from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.core.graph import Edges, OperandGraph
from dask_marsched.core.plan import Unit, WorkerSlot
from dask_marsched.core.roles import roles
from dask_marsched.policies import plan_search
from dask_marsched.policies.assignment import BoundedUnits
from dask_marsched.policies.clustering import cluster_initial_operands
from dask_marsched.policies.forecast import Forecast, forecast
from dask_marsched.policies.plan_search import CANDIDATES, choose_bound
from tests.graphs import graph, operand_graphs, pairwise, tree


def workers(*nthreads: int) -> list[WorkerSlot]:
    return [WorkerSlot(f"tcp://{i}", n) for i, n in enumerate(nthreads)]


def planner(g: OperandGraph, limit: int) -> Callable[[float], list[Unit]]:
    role = roles(g)

    def plan(kappa: float) -> list[Unit]:
        groups = cluster_initial_operands(g, role, stake=0.15, kappa=kappa, limit=limit)
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


@given(
    g=operand_graphs(),
    nthreads=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    limit=st.integers(1, 40),
)
def test_no_plan_is_chosen_that_holds_more_than_stock_or_hardly_more_than_the_leanest(
    g: OperandGraph, nthreads: list[int], limit: int
) -> None:
    plan = planner(g, limit)
    bound, units = choose_bound(g, workers(*nthreads), plan)
    assert bound in CANDIDATES
    assert units == plan(bound)
    alone = [Unit((i,)) for unit in units for i in unit.operands]
    stock = forecast(g, len(g), alone, nthreads, like_stock=True)
    found = [forecast(g, len(g), plan(kappa), nthreads) for kappa in CANDIDATES]
    held = forecast(g, len(g), units, nthreads).peak
    assert held <= max(stock.peak, 1.1 * min(f.peak for f in found))
    assert choose_bound(g, workers(*nthreads), plan) == (bound, units)


@pytest.mark.parametrize("g", [tree(64, 8), columns(6, 12), pairwise(20)])
def test_the_chosen_plan_is_no_worse_than_any_that_may_be_chosen(g: OperandGraph) -> None:
    """Against a bound that holds no more and takes no longer, it moves no more."""
    plan = planner(g, 16)
    _, units = choose_bound(g, workers(1, 1, 1), plan)
    chosen = forecast(g, len(g), units, [1, 1, 1])
    stock = forecast(
        g, len(g), [Unit((i,)) for u in units for i in u.operands], [1] * 3, like_stock=True
    )
    for kappa in CANDIDATES:
        other = forecast(g, len(g), plan(kappa), [1, 1, 1])
        if other.peak <= chosen.peak and other.makespan <= chosen.makespan:
            assert chosen.moved <= max(other.moved, 0.01 * stock.moved)


def test_different_graphs_get_different_bounds() -> None:
    trees, sums = tree(64, 8), columns(6, 12)
    bounds = [choose_bound(g, workers(1, 1), planner(g, 32))[0] for g in (trees, sums)]
    assert bounds[0] != bounds[1], bounds


@pytest.fixture
def forecasts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[int], bool]]:
    """How many operands were forecast on which threads, and whether as in stock Dask."""
    made: list[tuple[int, list[int], bool]] = []

    def watched(
        g: OperandGraph,
        count: int,
        units: list[Unit],
        threads: list[int],
        *,
        like_stock: bool = False,
    ) -> Forecast:
        made.append((count, threads, like_stock))
        return forecast(g, count, units, threads, like_stock=like_stock)

    monkeypatch.setattr(plan_search, "forecast", watched)
    return made


def test_plans_that_do_not_differ_are_not_forecast(
    forecasts: list[tuple[int, list[int], bool]],
) -> None:
    g = pairwise(6)
    bound, units = choose_bound(g, workers(1, 1), planner(g, 12))
    assert bound == CANDIDATES[0]
    assert len(units) == 6
    assert forecasts == []


def test_each_plan_is_forecast_once_and_stock_once(
    forecasts: list[tuple[int, list[int], bool]],
) -> None:
    g = tree(64, 8)
    plan = planner(g, 64)
    different = {tuple(plan(kappa)) for kappa in CANDIDATES}
    assert len(different) > 1
    choose_bound(g, workers(1, 2), plan)
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
    _, units = choose_bound(g, workers(1, 1), planner(g, 8))
    assert sorted(i for unit in units for i in unit.operands) == list(range(8))
