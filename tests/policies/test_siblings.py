from __future__ import annotations

from collections.abc import Mapping

from dask_marsched.core.graph import OperandGraph
from dask_marsched.policies.fusion import ALONE, CRUMB, FREE, VISIBLE, GroupBounds
from dask_marsched.policies.siblings import siblings
from tests.graphs import graph

MIB = 2.0**20
BOUNDS = GroupBounds(nbytes=64 * MIB, groups=4)


def slices(count: int = 3, nbytes: float = 8192.0, chunks: int = 8) -> OperandGraph:
    """Chunks, slices of each, and an operand for each slice that reads it."""
    inputs: dict[str, list[str]] = {}
    sizes: dict[str, float] = {}
    for n in range(chunks):
        inputs[f"chunk{n}"] = []
        sizes[f"chunk{n}"] = 8 * MIB
        for k in range(count):
            inputs[f"slice{n}.{k}"] = [f"chunk{n}"]
            inputs[f"reader{n}.{k}"] = [f"slice{n}.{k}"]
            sizes[f"slice{n}.{k}"] = nbytes
    return graph(inputs, sizes)


def found(
    g: OperandGraph,
    limits: GroupBounds = BOUNDS,
    roles: Mapping[str, int] | None = None,
    kinds: Mapping[str, int] | None = None,
) -> list[list[str]]:
    given = [(roles or {}).get(str(k), FREE if g.dependents[i] else VISIBLE)
             for i, k in enumerate(g.keys)]  # fmt: skip
    groups = siblings(g, given, [(kinds or {}).get(str(k), 0) for k in g.keys], limits)
    return [[str(g.keys[i]) for i in group] for group in groups]


def test_slices_of_a_chunk_are_made_as_one() -> None:
    assert found(slices())[0] == ["slice0.0", "slice0.1", "slice0.2"]
    assert len(found(slices())) == 8


def test_operands_that_read_the_same_two_chunks_are_siblings() -> None:
    g = graph(
        {"a": [], "b": [], "c": [], "ab": ["a", "b"], "ba": ["a", "b"], "bc": ["b", "c"]}
        | {f"read {name}": [name] for name in ("ab", "ba", "bc")}
        | {f"more{n}": [] for n in range(8)},
        dict.fromkeys(["a", "b", "c", *(f"more{n}" for n in range(8))], 8 * MIB),
    )
    assert found(g) == [["ab", "ba"]]


def test_large_results_stay_apart() -> None:
    assert found(slices(nbytes=2 * CRUMB)) == []


def test_together_they_are_still_small() -> None:
    assert {len(group) for group in found(slices(5, nbytes=0.4 * CRUMB))} == {2}


def test_readers_of_small_inputs_only_are_not_siblings() -> None:
    inputs = {"x": [], "a": ["x"], "b": ["x"], "read a": ["a"], "read b": ["b"]}
    assert found(graph(inputs, 100.0)) == []


def test_visible_and_alone_operands_are_not_siblings() -> None:
    g = slices(2, chunks=8)
    assert ["slice0.0", "slice0.1"] not in found(g, roles={"slice0.0": VISIBLE})
    assert ["slice0.0", "slice0.1"] not in found(g, roles={"reader0.0": ALONE})
    assert ["slice0.0", "slice0.1"] not in found(g, kinds={"slice0.0": 1})


def test_operands_of_unknown_duration_are_not_siblings() -> None:
    g = slices(2)
    batches = ["mine" if str(k).startswith("slice") else None for k in g.keys]
    assert found(g, GroupBounds(64 * MIB, 4, batches)) == []


def test_threads_keep_their_work() -> None:
    # Ten sums of one large chunk, and nothing else to do.
    inputs: dict[str, list[str]] = {"x": []}
    for n in range(10):
        inputs |= {f"sum{n}": ["x"], f"read{n}": [f"sum{n}"]}
    g = graph(inputs, {"x": 800 * MIB})
    assert all(len(group) <= 3 for group in found(g, GroupBounds(1e12, 8)))
