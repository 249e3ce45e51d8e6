from __future__ import annotations

from collections.abc import Hashable

from dask_marsched.core.graph import Edges, OperandGraph
from dask_marsched.core.plan import WorkerSlot
from dask_marsched.policies.assignment import BoundedUnits
from dask_marsched.policies.planning.counterpart_merging import counterparts


def arrays(names: str, chunks: int, *, reads: str = "", nbytes: float = 8.0) -> OperandGraph:
    """Arrays of sources; of the named ones each chunk is read by a chunk of another array."""
    keys: list[tuple[str, int]] = [(name, n) for name in names for n in range(chunks)]
    rows: list[list[int]] = [[] for _ in keys]
    sizes = [8.0] * len(keys)
    for name in reads:
        for n in range(chunks):
            rows.append([keys.index((name, n))])
            keys.append((name.upper(), n))
            sizes.append(nbytes)
    return OperandGraph(keys, Edges.of(rows), sizes, b"\1" * len(keys))


def units(g: OperandGraph, workers: int = 2) -> list[set[object]]:
    slots = [WorkerSlot(f"tcp://{i}", 1) for i in range(workers)]
    return [{g.keys[i] for i in unit.operands} for unit in BoundedUnits().assign(g, slots)]


def test_chunks_of_arrays_that_are_cut_alike_are_made_on_one_worker() -> None:
    assert units(arrays("abc", 4)) == [{(name, n) for name in "abc"} for n in range(4)]


def test_so_are_those_that_are_made_of_others() -> None:
    assert units(arrays("ab", 4, reads="ab")) == [{("a", n), ("b", n)} for n in range(4)]


def test_small_counterparts_do_not_join_units() -> None:
    assert len(units(arrays("ab", 4, reads="ab", nbytes=0.5))) == 8


def test_no_unit_is_larger_than_a_workers_share() -> None:
    assert len(units(arrays("abcdefgh", 2), workers=4)) == 16


def of(*keys: Hashable, inputs: dict[int, list[int]] | None = None) -> OperandGraph:
    rows = [(inputs or {}).get(i, []) for i in range(len(keys))]
    return OperandGraph(keys, Edges.of(rows), [8.0] * len(keys), b"\1" * len(keys))


def test_chunks_of_the_same_place_are_counterparts() -> None:
    g = of(("a", 0, 0), ("a", 0, 1), ("b", 0, 0), ("b", 0, 1))
    assert counterparts(g) == [[0, 2], [1, 3]]


def test_arrays_with_different_chunks_have_no_counterparts() -> None:
    assert counterparts(of(("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2))) == []


def test_results_with_readers_are_not_final() -> None:
    g = of(("a", 0), ("a", 1), ("b", 0), ("b", 1), inputs={2: [0], 3: [1]})
    assert counterparts(g) == []


def test_single_results_and_plain_names_have_no_counterparts() -> None:
    assert counterparts(of(("a", 0), ("b", 0), "c", "d")) == []
