from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.core.graph import Edges, OperandGraph
from dask_marsched.policies.planning.tiles import find_tiles

Key = tuple[object, ...]


def of(reads: dict[Key, list[Key]]) -> OperandGraph:
    keys = list(reads)
    number = {key: i for i, key in enumerate(keys)}
    rows = [sorted({number[read] for read in own}) for own in reads.values()]
    return OperandGraph(keys, Edges.of(rows), [8.0] * len(keys), b"\1" * len(keys))


def product(rows: int, inner: int, columns: int, group: int = 4) -> OperandGraph:
    """Blocks of a @ b, as dask.array has them: products, and their sums, `group` at a time."""
    reads: dict[Key, list[Key]] = {("a", i, k): [] for i in range(rows) for k in range(inner)}
    reads |= {("b", k, j): [] for k in range(inner) for j in range(columns)}
    for i, k, j in itertools.product(range(rows), range(inner), range(columns)):
        reads["p", i, k, j] = [("a", i, k), ("b", k, j)]
    groups = range(-(-inner // group))
    for i, n, j in itertools.product(range(rows), groups, range(columns)):
        some = range(n * group, min(inner, (n + 1) * group))
        reads["part", i, n, j] = [("p", i, k, j) for k in some]
    for i, j in itertools.product(range(rows), range(columns)):
        reads["sum", i, j] = [("part", i, n, j) for n in groups]
    return of(reads)


def keys_of(g: OperandGraph, tiles: list[tuple[int, ...]]) -> list[set[object]]:
    return [{g.keys[i] for i in tile} for tile in tiles]


def read_by(g: OperandGraph, tiles: list[tuple[int, ...]]) -> int:
    return sum(len({j for i in tile for j in g.inputs[i]}) for tile in tiles)


def test_a_product_of_matrices_is_cut_into_squares() -> None:
    g = product(4, 4, 4)
    found = keys_of(g, find_tiles(g, 4))
    assert found == [
        {("p", i, k, j) for i in own for k in range(4) for j in across}
        for own in ((0, 1), (2, 3))
        for across in ((0, 1), (2, 3))
    ]


def test_it_is_cut_inside_only_where_sums_begin_anew() -> None:
    g = product(8, 8, 8)
    for tile in keys_of(g, find_tiles(g, 16)):
        inner = Counter(k // 4 for _, _, k, _ in tile)
        assert all(count % 4 == 0 for count in inner.values())


def test_tiles_read_less_than_rows_do() -> None:
    g = product(12, 12, 12)
    assert read_by(g, find_tiles(g, 36)) < 36 * (4 + 48)  # a third of a row of a @ b each


def test_blocks_of_one_matrix_met_with_themselves() -> None:
    pairs = list(itertools.product(range(6), range(6)))
    reads: dict[Key, list[Key]] = {("x", i, k): [] for i, k in pairs}
    for (i, j), k in itertools.product(pairs, range(6)):
        reads["gram", i, k, j] = [("x", i, k), ("x", j, k)]
    g = of(reads)
    found = find_tiles(g, 4)
    assert sum(map(len, found)) == 216
    # Not all that is read along two axes is read by all: a row and a column of tiles.
    assert read_by(g, found) <= 4 * 36


def test_pairs_without_sums() -> None:
    reads: dict[Key, list[Key]] = {(name, i): [] for name in "xy" for i in range(6)}
    reads |= {("d", i, j): [("x", i), ("y", j)] for i in range(6) for j in range(6)}
    g = of(reads)
    assert read_by(g, find_tiles(g, 4)) == 4 * 6


def test_an_operand_that_reads_one_axis_is_not_a_product() -> None:
    grid = list(itertools.product(range(6), range(6)))
    reads: dict[Key, list[Key]] = {(name, *at): [] for name in "xy" for at in grid}
    reads["mean",] = [("x", *at) for at in grid]
    reads |= {("sum", *at): [("x", *at), ("y", *at)] for at in grid}
    reads |= {("deviation", *at): [("x", *at), ("mean",)] for at in grid}
    assert find_tiles(of(reads), 4) == []


def test_two_results_of_the_same_column_do_not_make_a_product() -> None:
    grid = list(itertools.product(range(6), range(6)))
    reads: dict[Key, list[Key]] = {("x", *at): [] for at in grid}
    for name in ("mean", "deviation"):
        reads |= {(name, j): [("x", i, j) for i in range(6)] for j in range(6)}
    reads |= {("y", i, j): [("x", i, j), ("mean", j), ("deviation", j)] for i, j in grid}
    assert find_tiles(of(reads), 4) == []


def test_small_inputs_do_not_make_a_product() -> None:
    grid = list(itertools.product(range(6), range(6)))
    reads: dict[Key, list[Key]] = {(name, i): [] for name in "xy" for i in range(6)}
    reads |= {("z", i, j): [] for i, j in grid}
    reads |= {("d", i, j): [("x", i), ("y", j), ("z", i, j)] for i, j in grid}
    g = of(reads)
    assert find_tiles(g, 4)
    crumbs = [4.0 if key[0] in "xy" else 9.0 for key in g.keys]
    assert find_tiles(g.with_nbytes(crumbs, g.known), 4) == []


def test_neighbours_do_not_make_a_product() -> None:
    grid = set(itertools.product(range(6), range(6)))
    reads: dict[Key, list[Key]] = {("x", *at): [] for at in sorted(grid)}
    for i, j in sorted(grid):
        near = {(i + a, j + b) for a in (-1, 0, 1) for b in (-1, 0, 1)} & grid
        reads["y", i, j] = [("x", *at) for at in sorted(near)]
    assert find_tiles(of(reads), 4) == []


def test_layers_without_a_full_grid_are_not_cut() -> None:
    reads: dict[Key, list[Key]] = {(name, i): [] for name in "xy" for i in range(6)}
    some = [(i, j) for i in range(6) for j in range(6) if (i, j) != (3, 3)]
    reads |= {("d", i, j): [("x", i), ("y", j)] for i, j in some}
    whole = [(i, j) for i in range(6) for j in range(6)]
    reads |= {("named", f"{i}", f"{j}"): [("x", i), ("y", j)] for i, j in whole}
    reads |= {("nested", (i,) * (j + 1), j): [("x", i), ("y", j)] for i, j in whole}
    reads |= {("huge", i << 70, j): [("x", i), ("y", j)] for i, j in whole}
    reads |= {("parts", i / 2, j): [("x", i), ("y", j)] for i, j in whole}
    assert find_tiles(of(reads), 4) == []


def test_one_worker_and_few_operands_need_no_tiles() -> None:
    g = product(3, 3, 3)
    assert find_tiles(g, 1) == []
    assert find_tiles(g, 14) == []
    assert find_tiles(g, 13)


@given(
    extents=st.tuples(*[st.integers(1, 6)] * 3),
    workers=st.integers(2, 12),
    group=st.integers(1, 6),
)
def test_tiles_cut_a_layer_into_few_even_parts(
    extents: tuple[int, int, int], workers: int, group: int
) -> None:
    g = product(*extents, group=group)
    found = find_tiles(g, workers)
    together = sorted(i for tile in found for i in tile)
    if found:
        assert together == [i for i in g if g.keys[i][0] == "p"]
        assert workers <= len(found) <= 2 * workers
        assert all(tile == tuple(sorted(tile)) for tile in found)
    assert found == find_tiles(g, workers)
