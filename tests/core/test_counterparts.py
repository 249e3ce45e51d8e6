from __future__ import annotations

from collections.abc import Hashable

from dask_marsched.core.counterparts import counterparts
from dask_marsched.core.graph import Edges, OperandGraph


def of(*keys: Hashable, inputs: dict[int, list[int]] | None = None) -> OperandGraph:
    rows = [(inputs or {}).get(i, []) for i in range(len(keys))]
    return OperandGraph(keys, Edges.of(rows), [8.0] * len(keys), b"\1" * len(keys))


def test_chunks_of_the_same_place_are_counterparts() -> None:
    g = of(("a", 0, 0), ("a", 0, 1), ("b", 0, 0), ("b", 0, 1))
    assert counterparts(g) == [[0, 2], [1, 3]]


def test_arrays_that_are_cut_otherwise_have_none() -> None:
    assert counterparts(of(("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2))) == []


def test_what_is_read_on_is_not_final() -> None:
    g = of(("a", 0), ("a", 1), ("b", 0), ("b", 1), inputs={2: [0], 3: [1]})
    assert counterparts(g) == []


def test_single_results_and_names_without_indices_have_none() -> None:
    assert counterparts(of(("a", 0), ("b", 0), "c", "d")) == []
