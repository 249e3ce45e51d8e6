from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.core.graph import Edges, OperandGraph
from dask_marsched.core.plan import Unit, WorkerSlot
from dask_marsched.core.roles import roles
from dask_marsched.policies import assignment, registry
from dask_marsched.policies.assignment import BoundedUnits, BreadthFirst, DepthFirst
from dask_marsched.policies.planning.plan_search import UnitBounds, choose_bounds
from tests.graphs import graph, operand_graphs, pairwise, tree


def workers(*nthreads: int, bound: tuple[int, ...] = ()) -> list[WorkerSlot]:
    return [
        WorkerSlot(f"tcp://{i}", n, bound=bound[i] if bound else 0) for i, n in enumerate(nthreads)
    ]


def named(g: OperandGraph, units: list[Unit]) -> list[set[object]]:
    return [{g.keys[i] for i in unit.operands} for unit in units]


def test_depth_first_gives_each_worker_a_share_of_the_graph() -> None:
    g = pairwise(4)
    units = DepthFirst().assign(g, workers(1, 1))
    assert [u.worker for u in units] == [0, 1]
    assert named(g, units) == [{"a0", "b0", "a1", "b1"}, {"a2", "b2", "a3", "b3"}]


def test_depth_first_follows_a_branch_and_breadth_first_does_not() -> None:
    g = graph(
        {"x": []} | {f"y{i}": [] for i in range(4)} | {f"p{i}": ["x", f"y{i}"] for i in range(4)}
    )
    # 9 operands on two workers: 4.5 is exceeded with the fifth.
    assert named(g, DepthFirst().assign(g, workers(1, 1)))[0] == {"x", "y0", "y1"}
    assert named(g, BreadthFirst().assign(g, workers(1, 1)))[0] == {"x"}


def test_shares_follow_threads() -> None:
    g = pairwise(8)
    units = DepthFirst().assign(g, workers(1, 3))
    assert [len(u.operands) for u in units] == [4, 12]


def test_shares_are_reduced_by_what_a_worker_has_run() -> None:
    g = pairwise(8)
    pending = {i for i in g if g.keys[i] not in {"a0", "b0", "a1", "b1"} and not g.inputs[i]}
    units = DepthFirst().assign(g, workers(1, 1, bound=(4, 0)), pending)
    assert [len(u.operands) for u in units] == [4, 8]


def test_pairs_that_meet_form_units() -> None:
    g = pairwise(6)
    units = BoundedUnits().assign(g, workers(1, 1))
    assert named(g, units) == [{f"a{i}", f"b{i}"} for i in range(6)]
    assert {u.worker for u in units} == {None}


def test_a_unit_is_bounded_in_memory() -> None:
    # A tree over 64 chunks whose partial results are as large as the chunks themselves.
    g = tree(leaves=64, fan=8)
    sizes = {len(u.operands) for u in BoundedUnits(kappa=4).assign(g, workers(1))}
    assert max(sizes) <= 4
    sizes = {len(u.operands) for u in BoundedUnits(kappa=9).assign(g, workers(1))}
    assert max(sizes) == 8


def test_the_bound_is_chosen_by_forecasts_unless_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    g, chosen = tree(leaves=64, fan=8), []

    def watched(*args: Any) -> tuple[UnitBounds, list[Unit]]:
        chosen.append(choose_bounds(*args))
        return chosen[-1]

    monkeypatch.setattr(assignment, "choose_bounds", watched)
    units = BoundedUnits().assign(g, workers(1, 1))
    ((bounds, best),) = chosen
    assert bounds.size is None
    assert units == best == BoundedUnits(kappa=bounds.kappa).assign(g, workers(1, 1))
    # Nothing can be forecast of sizes that are not known, or for no workers.
    unknown = g.with_nbytes(g.nbytes, bytes(len(g)))
    assert BoundedUnits().assign(unknown, workers(1, 1)) == BoundedUnits(kappa=4).assign(
        g, workers(1, 1)
    )
    assert BoundedUnits().assign(g, []) == BoundedUnits(kappa=16).assign(g, [])
    assert len(chosen) == 1


def test_small_results_do_not_merge_clusters() -> None:
    # The joins read a hundredth of a chunk: keeping their producers together gains nothing.
    g = graph(
        {f"x{i}": [] for i in range(4)}
        | {f"p{i}": [f"x{i}"] for i in range(4)}
        | {"sum": [f"p{i}" for i in range(4)]},
        {f"p{i}": 0.08 for i in range(4)} | {"sum": 0.08},
    )
    assert len(BoundedUnits().assign(g, workers(1, 1))) == 4


def test_a_unit_leaves_work_for_the_other_workers() -> None:
    g = graph({f"x{i}": [] for i in range(4)} | {"all": [f"x{i}" for i in range(4)]})
    assert len(BoundedUnits(kappa=100).assign(g, workers(1))) == 1
    assert len(BoundedUnits(kappa=100).assign(g, workers(1, 1))) == 2


def test_inputs_in_memory_keep_their_readers_apart() -> None:
    g = graph(
        {"x": [], "y": [], "z": ["x", "y"]}, {"x": 1.0, "y": 1.0}, {"x": 0, "y": 1}, home_bytes=8.0
    )
    assert len(BoundedUnits().assign(g, workers(2, 2))) == 2
    same = graph({"x": [], "y": [], "z": ["x", "y"]}, home={"x": 0, "y": 0})
    assert len(BoundedUnits().assign(same, workers(2))) == 1


def test_readers_meet_only_where_that_saves_more_than_it_moves() -> None:
    """What `mean` makes of a chunk is a few bytes larger: no reason to fetch the chunk."""
    g = graph({"x": [], "y": [], "z": ["x", "y"]}, 8.01, {"x": 0, "y": 1}, home_bytes=8.0)
    assert len(BoundedUnits().assign(g, workers(2))) == 2
    larger = graph({"x": [], "y": [], "z": ["x", "y"]}, 16.0, {"x": 0, "y": 1}, home_bytes=8.0)
    assert len(BoundedUnits().assign(larger, workers(2))) == 1


def test_without_workers_there_is_still_a_plan() -> None:
    g = pairwise(3)
    for policy in (DepthFirst(), BreadthFirst(), BoundedUnits()):
        assert set().union(*named(g, policy.assign(g, []))) == {
            g.keys[i] for i in g if not g.inputs[i]
        }


@given(
    g=operand_graphs(),
    nthreads=st.lists(st.integers(1, 8), max_size=5),
    name=st.sampled_from(registry.names("assignment")),
    data=st.data(),
)
def test_units_partition_the_initial_operands(
    g: OperandGraph, nthreads: list[int], name: str, data: st.DataObject
) -> None:
    policy = registry.create("assignment", name)
    slots = workers(*nthreads)
    expected = {i for i in g if not g.inputs[i]}
    if name == "units":
        expected |= set(roles(g).initial_operands())
    units = policy.assign(g, slots)
    assigned = [i for unit in units for i in unit.operands]
    assert sorted(assigned) == sorted(expected)
    assert all(unit.worker is None or unit.worker < len(slots) for unit in units)
    assert units == policy.assign(g, slots), "not deterministic"
    pending = data.draw(st.sets(st.sampled_from(sorted(expected))))
    again = [i for unit in policy.assign(g, slots, pending) for i in unit.operands]
    assert sorted(again) == sorted(pending)


@given(g=operand_graphs(), kappa=st.floats(1, 10), nthreads=st.integers(1, 4))
def test_units_stay_below_their_limit(g: OperandGraph, kappa: float, nthreads: int) -> None:
    n = len(roles(g).initial_operands())
    units = BoundedUnits(kappa=kappa).assign(g, workers(*[1] * nthreads))
    assert max((len(u.operands) for u in units), default=0) <= max(1, -(-n // nthreads))


@pytest.mark.parametrize("name", registry.names("assignment"))
def test_deep_graphs_do_not_recurse(name: str) -> None:
    n = 5000
    inputs = Edges.of([i - 1] if i else [] for i in range(n))
    g = OperandGraph(range(n), inputs, [1.0] * n, b"\1" * n)
    assert [u.operands for u in registry.create("assignment", name).assign(g, workers(1))] == [(0,)]


@pytest.mark.extended
@pytest.mark.parametrize("policy", [BoundedUnits(), DepthFirst(), BreadthFirst()])
@given(g=operand_graphs(), layers=st.permutations([f"layer-{i}" for i in range(4)]))
def test_plans_do_not_depend_on_layer_names(
    policy: assignment.AssignmentPolicy, g: OperandGraph, layers: list[str]
) -> None:
    """Chunks of arrays are known by their places; which name sorts or hashes first says nothing."""

    def renamed(names: list[str]) -> OperandGraph:
        return replace(g, keys=[(names[i % len(names)], i // len(names)) for i in g])

    plans = [policy.assign(renamed(names), workers(1, 2)) for names in (sorted(layers), layers)]
    assert plans[0] == plans[1]
