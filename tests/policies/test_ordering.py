from __future__ import annotations

import pytest
from hypothesis import given

from dask_marsched.core.graph import OperandGraph, depths
from dask_marsched.policies.ordering import DaskOrder, MarsOrder
from tests.graphs import graph, operand_graphs


def test_dask_order_is_kept() -> None:
    assert DaskOrder().order(graph({"a": []})) is None


def test_mars_order() -> None:
    g = graph(
        {"a": [], "b": [], "c": [], "d": ["c"], "e": ["a", "d"]},
        {"a": 8.0, "b": 2.0, "c": 8.0},
    )
    # e is deepest, then d; a is read by something deeper (e) than c is (d); b by nothing.
    assert [g.keys[i] for i in MarsOrder().order(g)] == ["e", "d", "a", "c", "b"]


def test_smaller_results_first() -> None:
    g = graph({"a": [], "b": [], "c": ["a", "b"]}, {"a": 8.0, "b": 2.0})
    assert [g.keys[i] for i in MarsOrder().order(g)] == ["c", "b", "a"]


@pytest.mark.extended
@given(operand_graphs())
def test_mars_order_is_by_depth(g: OperandGraph) -> None:
    order = MarsOrder().order(g)
    assert sorted(order) == list(g)
    depth = depths(g)
    assert [depth[i] for i in order] == sorted(depth, reverse=True)
