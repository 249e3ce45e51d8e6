from __future__ import annotations

import pytest

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.plan import Unit, WorkerSlot
from dask_marsched.policies import assignment
from dask_marsched.policies.assignment import BoundedUnits
from dask_marsched.policies.planning import tiles
from tests.graphs import forecast
from tests.policies.planning.test_tiles import product


def sized(g: OperandGraph) -> OperandGraph:
    return g.with_nbytes([2.0**21] * len(g), b"\1" * len(g))


def slots(workers: int, threads: int = 2) -> list[WorkerSlot]:
    return [WorkerSlot(f"tcp://{n}", threads) for n in range(workers)]


def plain(g: OperandGraph, workers: list[WorkerSlot]) -> list[Unit]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "with_tiles", lambda graph, units, workers: units)
        return BoundedUnits().assign(g, workers)


def test_products_run_in_tiles_where_less_moves() -> None:
    g, workers = sized(product(8, 4, 8)), slots(4)
    without, found = plain(g, workers), BoundedUnits().assign(g, workers)
    assert sorted(i for unit in found for i in unit.operands) == [
        i for i in g if g.keys[i][0] in "abp"
    ]
    assert {unit.tile for unit in found} == {True, False}
    assert not any(unit.tile for unit in without)
    assert found == sorted(found, key=lambda unit: unit.operands)
    run = [forecast(g, units, [2] * 4) for units in (without, found)]
    assert run[1].moved < 0.75 * run[0].moved


def test_not_where_that_would_hold_more_than_stock_dask() -> None:
    g, workers = sized(product(4, 4, 4)), slots(4, 1)
    units = plain(g, workers)
    assert tiles.with_tiles(g, units, workers) is units


def test_nor_in_a_graph_too_large_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    g, workers = sized(product(8, 4, 8)), slots(4)
    monkeypatch.setattr(tiles, "_MOST_OPERANDS", len(g) - 1)
    units = plain(g, workers)
    assert tiles.with_tiles(g, units, workers) is units


def test_tiles_are_still_tiles_when_planned_again() -> None:
    g, workers = sized(product(8, 4, 8)), slots(4)
    pending = {i for i in g if g.keys[i][0] == "p"} - {g.keys.index(("p", 0, 0, 0))}
    found = BoundedUnits().assign(g, workers, pending)
    assert {unit.tile for unit in found} == {True}
    assert {i for unit in found for i in unit.operands} == pending


def test_none_where_sizes_are_not_known() -> None:
    g, workers = product(8, 4, 8), slots(4)
    g = g.with_nbytes(list(g.nbytes), b"\0" * len(g))
    assert not any(unit.tile for unit in BoundedUnits().assign(g, workers))
