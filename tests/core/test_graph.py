from __future__ import annotations

import pytest
from hypothesis import given

from dask_marsched.core.graph import Edges, OperandGraph, depths, typical_nbytes
from tests.graphs import graph, operand_graphs


def test_dependents_mirror_inputs() -> None:
    g = graph({"a": [], "b": ["a"], "c": ["a", "b"]})
    assert list(g.dependents) == [[1, 2], [2], []]
    assert g.dependents[-2] == [2]


def test_numbering_must_be_topological() -> None:
    with pytest.raises(ValueError, match="operand number 0 reads operand number 1"):
        OperandGraph(["a", "b"], Edges.of([[1], []]), [1.0, 1.0], b"\0\0")


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="nbytes has 1 entries for 2 operands"):
        OperandGraph(["a", "b"], Edges.of([[], []]), [1.0], b"\0\0")


def test_depth_is_the_longest_path() -> None:
    g = graph({"a": [], "b": ["a"], "c": ["a", "b"], "d": []})
    assert depths(g) == [0, 1, 2, 0]


def test_depth_of_a_marked_initial_operand_is_zero() -> None:
    g = graph({"hub": [], "x": ["hub"], "y": ["x"]})
    assert depths(g, [True, True, False]) == [0, 0, 1]


@given(operand_graphs())
def test_depth_exceeds_that_of_every_input(g: OperandGraph) -> None:
    depth = depths(g)
    for i in g:
        assert depth[i] == 1 + max((depth[j] for j in g.inputs[i]), default=-1)


def test_typical_size_is_that_of_the_chunks_not_of_the_indices_beside_them() -> None:
    g = graph({"chunk": [], "index": [], "other": []}, {"chunk": 100.0, "index": 1.0, "other": 1.0})
    assert 98 < typical_nbytes(g, list(g)) < 100
    assert typical_nbytes(g, [0]) == 100


def test_typical_size_is_never_zero() -> None:
    g = graph({"a": []}, 0.0)
    assert typical_nbytes(g, [0]) == typical_nbytes(g, []) == 1.0


def test_with_nbytes_keeps_the_rest() -> None:
    g = graph({"a": [], "b": ["a"]}, home={"a": 3})
    other = g.with_nbytes([5.0, 6.0], b"\0\1")
    assert list(other.nbytes) == [5.0, 6.0]
    assert (other.keys, other.inputs.flat, other.home) == (g.keys, g.inputs.flat, g.home)
