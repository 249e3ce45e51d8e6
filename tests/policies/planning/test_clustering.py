from __future__ import annotations

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.roles import roles
from dask_marsched.policies.planning.clustering import Clustering
from tests.graphs import graph

CHUNKS = 64


def deviations(wait: bool) -> OperandGraph:
    """Chunks, their sum, and the chunks again, each with a piece of the sum if they wait."""
    inputs: dict[str, list[str]] = {f"x{i}": [] for i in range(CHUNKS)}
    level, depth = list(inputs), 0
    while len(level) > 1:
        depth += 1
        sums = [f"s{depth}.{i}" for i in range(len(level) // 2)]
        inputs |= {s: [level[2 * i], level[2 * i + 1]] for i, s in enumerate(sums)}
        level = sums
    inputs |= {f"p{i}": level if wait else [] for i in range(CHUNKS)}
    inputs |= {f"d{i}": [f"x{i}", f"p{i}"] for i in range(CHUNKS)}
    return graph(inputs, {key: 0.0 if key[0] == "d" else 8.0 for key in inputs})


def most_chunks(g: OperandGraph, kappa: float) -> int:
    """Return how many chunks are in the largest unit."""
    groups = Clustering(g, roles(g), stake=0.15).groups(kappa=kappa, limit=2 * CHUNKS)
    return max(sum(str(g.keys[i])[0] == "x" for i in group) for group in groups)


def test_operands_waiting_for_a_hub_keep_their_inputs() -> None:
    """All chunks of a unit are held together, whatever becomes of their sums meanwhile."""
    assert most_chunks(deviations(wait=False), kappa=8.0) >= CHUNKS // 2
    for kappa in (4.0, 8.0, 16.0):
        assert 1 < most_chunks(deviations(wait=True), kappa) < kappa


def test_operands_after_the_hub_do_not_count_for_the_bound() -> None:
    """There is room for half of the chunks, not for as many pieces of the sum as well."""
    assert most_chunks(deviations(wait=True), kappa=0.75 * CHUNKS) == CHUNKS // 2
    g = deviations(wait=True)
    groups = Clustering(g, roles(g), stake=0.15).groups(kappa=48.0, limit=2 * CHUNKS)
    for group in groups:
        letters = sorted(str(g.keys[i]) for i in group)
        chunks = {key[1:] for key in letters if key[0] == "x"}
        assert chunks == {key[1:] for key in letters if key[0] == "p"}
