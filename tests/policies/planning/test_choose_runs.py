from __future__ import annotations

from typing import Any

import pytest

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.plan import Unit, WorkerSlot
from dask_marsched.policies.assignment import BoundedUnits
from dask_marsched.policies.dispatch_pace import SCHEDULER_TIME
from dask_marsched.policies.planning import plan_search
from dask_marsched.policies.planning.forecast import Forecaster, PlanForecast
from dask_marsched.policies.planning.host_shares import RUNS, cut_into_shares
from dask_marsched.policies.planning.plan_search import NOT_CUT, choose_runs
from tests.graphs import forecast, graph

WORKERS = [WorkerSlot(f"tcp://{n}", 1, host=str(n // 2)) for n in range(16)]
HOSTS = [w.host for w in WORKERS]


def months(count: int, steps: int) -> OperandGraph:
    """Chunks by month, their mean, and each chunk without it, for results of no size."""
    inputs: dict[str, list[str]] = {}
    for m in range(count):
        chunks = [f"x{m}.{i}" for i in range(steps)]
        inputs |= {name: [] for name in chunks}
        for i in range(0, steps, 4):
            inputs[f"p{m}.{i}"] = chunks[i : i + 4]
        inputs[f"m{m}"] = [f"p{m}.{i}" for i in range(0, steps, 4)]
        inputs |= {f"r{m}.{i}": [f"m{m}", f"x{m}.{i}"] for i in range(steps)}
    return graph(inputs, {name: 8.0 if name[0] == "r" else 8e6 for name in inputs})


def everything_meets(blocks: int) -> OperandGraph:
    """Rows and columns of blocks, each of which meets all of the others, for small results."""
    inputs: dict[str, list[str]] = {}
    for i in range(blocks):
        inputs |= {f"a{i}": [], f"b{i}": []}
        inputs |= {f"p{i}.{j}": [f"a{i}", f"b{j}"] for j in range(i + 1)}
        inputs |= {f"q{i}.{j}": [f"a{j}", f"b{i}"] for j in range(i)}
    return graph(inputs, {name: 8e6 if name[0] in "ab" else 8.0 for name in inputs})


def each_alone(g: OperandGraph) -> list[Unit]:
    return [Unit((i,)) for i in g if not g.inputs[i]]


def run_with(g: OperandGraph, runs: int) -> PlanForecast:
    units = each_alone(g)
    cut = units if runs == NOT_CUT else cut_into_shares(units, WORKERS, runs)
    return forecast(
        g, cut, [1] * len(WORKERS), link=1e9, scheduler_time=SCHEDULER_TIME, hosts=HOSTS
    )


def like_stock(g: OperandGraph) -> PlanForecast:
    return forecast(
        g, each_alone(g), [1] * len(WORKERS), like_stock=True, link=1e9,
        scheduler_time=SCHEDULER_TIME, hosts=HOSTS,
    )  # fmt: skip


def test_runs_are_shortened_until_the_hosts_hold_no_more_than_stock_dask() -> None:
    g = months(12, 32)
    most = like_stock(g).peak
    assert run_with(g, 1).peak > most
    runs = choose_runs(g, WORKERS, each_alone)
    assert runs != 1
    found = run_with(g, runs)
    assert found.peak <= most
    # No longer ones would do.
    fitting = [m for m in RUNS if run_with(g, m).peak <= most]
    assert runs == NOT_CUT or runs >= fitting[0]
    assert found.between_hosts <= 1.1 * run_with(g, fitting[0]).between_hosts


def test_leaner_runs_are_taken_only_where_hardly_more_moves_between_hosts() -> None:
    for g in (months(12, 32), months(40, 8), everything_meets(24)):
        most = like_stock(g).peak
        found = {m: run_with(g, m) for m in (*RUNS, NOT_CUT)}
        fitting = [m for m in found if found[m].peak <= most]
        runs = choose_runs(g, WORKERS, each_alone)
        if fitting:
            assert runs in fitting
            assert found[runs].peak <= found[fitting[0]].peak
            assert found[runs].between_hosts <= 1.1 * found[fitting[0]].between_hosts
        else:
            assert found[runs].peak == min(f.peak for f in found.values())


def test_no_fewer_runs_than_asked_for() -> None:
    for least in RUNS:
        runs = choose_runs(months(40, 8), WORKERS, each_alone, least)
        assert runs == NOT_CUT or runs >= least


def test_of_a_large_graph_a_part_is_forecast_on_a_part_of_the_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[int, int]] = []

    plan = Forecaster.plan

    def watched(of: Forecaster, *args: Any, **kwargs: Any) -> PlanForecast:
        assert len(of.threads) == len(of.hosts)
        made.append((len(of.graph), len(of.threads)))
        return plan(of, *args, **kwargs)

    monkeypatch.setattr(Forecaster, "plan", watched)
    monkeypatch.setattr(plan_search, "_CHECKED", 400)
    g = months(12, 32)
    choose_runs(g, WORKERS, each_alone)
    assert {count for count, _ in made} == {400}
    hosts = -(-8 * 400 // len(g))
    assert {workers for _, workers in made} == {2 * hosts}


def test_a_graph_is_looked_at_once_as_its_sizes_are_learned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def watched(*args: object) -> int:
        made.append(1)
        return 2

    monkeypatch.setattr("dask_marsched.policies.assignment.choose_runs", watched)
    g, policy = months(6, 16), BoundedUnits()
    units = policy.assign(g, WORKERS)
    assert len({unit.share for unit in units}) == 16
    learned = g.with_nbytes([1.1 * nbytes for nbytes in g.nbytes], g.known)
    assert policy.assign(learned, WORKERS) == units
    assert len(made) == 1
    policy.assign(g.with_nbytes([2 * nbytes for nbytes in g.nbytes], g.known), WORKERS)
    assert len(made) == 2


def test_an_uncut_plan_has_no_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dask_marsched.policies.assignment.choose_runs", lambda *args: NOT_CUT)
    units = BoundedUnits().assign(months(6, 16), WORKERS)
    assert {unit.share for unit in units} == {None}


def test_nothing_is_forecast_where_sizes_are_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dask_marsched.policies.assignment.choose_runs", None)
    g = months(6, 16)
    unknown = g.with_nbytes(g.nbytes, b"\0" * len(g))
    assert {unit.share for unit in BoundedUnits().assign(unknown, WORKERS)} != {None}
