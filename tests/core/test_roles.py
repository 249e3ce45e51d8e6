from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.roles import cut_up_operands, roles
from tests.graphs import graph, operand_graphs, pairwise


def named(g: OperandGraph, flags: bytes) -> set[object]:
    return {g.keys[i] for i in g if flags[i]}


def test_sources_are_initial() -> None:
    g = pairwise(2)
    assert named(g, roles(g).initial) == {"a0", "b0", "a1", "b1"}


def test_an_operand_read_by_nearly_all_is_a_hub_with_initial_readers() -> None:
    g = graph({"h": [], **{f"x{i}": ["h"] for i in range(20)}})
    role = roles(g)
    assert named(g, role.hub) == {"h"}
    assert named(g, role.initial) == {f"x{i}" for i in range(20)}


def test_a_computed_value_can_be_a_hub() -> None:
    g = graph({"a": [], "mean": ["a"], **{f"x{i}": ["mean"] for i in range(20)}})
    role = roles(g)
    assert named(g, role.hub) == {"mean"}
    assert named(g, role.initial) == {"a", *(f"x{i}" for i in range(20))}


def test_blocks_that_very_many_products_read_are_hubs() -> None:
    n = 20
    g = graph(
        {f"a{i}": [] for i in range(n)}
        | {f"b{i}": [] for i in range(n)}
        | {f"p{i}.{j}": [f"a{i}", f"b{j}"] for i in range(n) for j in range(n)}
    )
    role = roles(g)
    assert named(g, role.hub) == {*(f"a{i}" for i in range(n)), *(f"b{i}" for i in range(n))}
    assert len(role.initial_operands()) == n * n


def test_blocks_of_a_matrix_product_are_initial_operands() -> None:
    n = 8
    g = graph(
        {f"a{i}.{k}": [] for i in range(n) for k in range(n)}
        | {f"b{k}.{j}": [] for k in range(n) for j in range(n)}
        | {
            f"p{i}.{j}.{k}": [f"a{i}.{k}", f"b{k}.{j}"]
            for i in range(n)
            for j in range(n)
            for k in range(n)
        }
    )
    role = roles(g)
    assert not any(role.hub)
    assert len(role.initial_operands()) == 2 * n * n


def test_pieces_of_many_chunks_run_where_the_chunks_are() -> None:
    n = 20
    g = graph(
        {f"x{i}": [] for i in range(n)}
        | {f"x{i}.{j}": [f"x{i}"] for i in range(n) for j in range(n)}
        | {f"y{j}": [f"x{i}.{j}" for i in range(n)] for j in range(n)}
    )
    assert named(g, roles(g, 4).initial) == {f"x{i}" for i in range(n)}
    # With more threads than chunks the pieces must spread.
    assert named(g, roles(g, 40).hub) == {f"x{i}" for i in range(n)}


def cut_up(parts: int, total: float, size: float = 100.0, readers: int = 0) -> OperandGraph:
    """A result and its parts, `total` bytes together; `readers` others read it and a part."""
    names = [f"p{i}" for i in range(parts)]
    return graph(
        {"source": [], "x": ["source"]}
        | {name: ["x"] for name in names}
        | {f"r{i}": ["x", names[i]] for i in range(readers)},
        {"x": size} | dict.fromkeys(names, total / parts),
    )


@pytest.mark.parametrize("total", [50.0, 100.0, 150.0])
def test_pieces_of_a_single_chunk_run_where_it_is(total: float) -> None:
    g = cut_up(20, total)
    # With many threads too: to cut is less work than to move what is cut.
    assert named(g, roles(g, 40).hub) == set()
    assert named(g, roles(g, 40).initial) == {"source"}


@pytest.mark.parametrize("total", [0.0, 49.0, 151.0, 2000.0])
def test_pieces_of_much_less_or_more_bytes_are_not_cuts(total: float) -> None:
    g = cut_up(20, total)
    assert named(g, roles(g).hub) == {"x"}
    assert named(g, roles(g).initial) == {"source", *(f"p{i}" for i in range(20))}


def test_where_sizes_are_not_known_nothing_is_taken_for_a_cut() -> None:
    g = cut_up(20, 100.0)
    for unknown in ("x", "p7"):
        known = bytes(name != unknown for name in g.keys)
        assert named(g, roles(g.with_nbytes(g.nbytes, known)).hub) == {"x"}


def test_a_chunk_that_most_read_along_with_others_is_a_hub_even_if_it_is_cut_up() -> None:
    g = cut_up(10, 100.0, readers=10)
    assert named(g, roles(g).hub) == {"x"}
    assert named(g, roles(cut_up(12, 100.0, readers=10)).hub) == set()


@pytest.mark.parametrize(
    ("parts", "total", "found"),
    [(7, 100.0, {"x"}), (6, 100.0, set()), (20, 151.0, set()), (20, 49.0, set())],
)
def test_cut_up_operands_are_found(parts: int, total: float, found: set[str]) -> None:
    g = cut_up(parts, total)
    assert {g.keys[i] for i in cut_up_operands(g)} == found
    unknown = g.with_nbytes(g.nbytes, bytes(name != "x" for name in g.keys))
    assert cut_up_operands(unknown) == []


@pytest.mark.parametrize(("met", "found"), [(6.0, {"x"}), (4.0, set())])
def test_few_cut_up_operands_are_found_if_their_pieces_meet_larger_results(
    met: float, found: set[str]
) -> None:
    numbers = range(20)  # pieces of 5
    g = graph(
        {"x": []}
        | {f"p{i}": ["x"] for i in numbers}
        | {f"q{i}": [] for i in numbers}
        | {f"r{i}": [f"p{i}", f"q{i}"] for i in numbers},
        {"x": 100.0} | {f"p{i}": 5.0 for i in numbers} | {f"q{i}": met for i in numbers},
    )
    assert {g.keys[i] for i in cut_up_operands(g, 2)} == {"x"}
    assert {g.keys[i] for i in cut_up_operands(g, 3)} == found


def test_few_cut_up_operands_with_unread_pieces_are_not_found() -> None:
    assert cut_up_operands(cut_up(20, 100.0), 3) == []


@pytest.mark.parametrize("threads", [1, 8])
def test_pieces_known_by_their_function_are_cut_in_place_and_read_anywhere(threads: int) -> None:
    """As when frames of other divisions are aligned with one partition: most pieces are empty."""
    g = graph(
        {"x": []} | {f"p{i}": ["x"] for i in range(20)} | {f"r{i}": [f"p{i}"] for i in range(20)}
    )
    readers = {f"r{i}" for i in range(20)}
    unknown = g.with_nbytes(g.nbytes, bytes(len(g)))
    assert named(unknown, roles(unknown, threads).initial) == {f"p{i}" for i in range(20)}
    cut = replace(unknown, pieces=frozenset(i for i in g if g.keys[i][0] == "p"))
    assert named(cut, roles(cut, threads).initial) == {"x"} | readers
    assert {g.keys[i] for i in cut_up_operands(cut, threads)} == {"x"}


def test_pieces_of_enough_operands_for_all_threads_are_read_where_they_are() -> None:
    pieces = {f"p{k}{i}": [f"x{k}"] for k in range(4) for i in range(20)}
    readers = {f"r{name}": [name] for name in pieces}
    g = graph({f"x{k}": [] for k in range(4)} | pieces | readers)
    cut = replace(g, pieces=frozenset(i for i in g if g.keys[i][0] == "p"))
    assert named(cut, roles(cut, 2).initial) == {"x0", "x1", "x2", "x3"}


@pytest.mark.extended
@given(operand_graphs())
def test_an_operand_is_initial_exactly_if_it_reads_hubs_alone(g: OperandGraph) -> None:
    role = roles(g)
    for i in g:
        assert role.initial[i] == (not role.hub[i] and all(role.hub[j] for j in g.inputs[i]))
