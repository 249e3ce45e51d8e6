"""What is joined and bundled in a graph that is given as plain numbers."""

from __future__ import annotations

from dask_marsched.core import memoization
from dask_marsched.core.graph import OperandGraph
from dask_marsched.policies.fusion import FREE, VISIBLE, group_bounds, group_heads
from dask_marsched.policies.grouping import ClusterLimits, Groups, find_groups
from dask_marsched.policies.siblings import siblings
from tests.graphs import graph

MIB = 2.0**20
CLUSTER = ClusterLimits(workers=2, threads=4, thread_memory=1024 * MIB)


def sums(chunks: int = 4) -> OperandGraph:
    """Sums of chunks, and a sum of these."""
    inputs: dict[str, list[str]] = {}
    for n in range(chunks):
        inputs[f"chunk{n}"] = []
        inputs[f"sum{n}"] = [f"chunk{n}"]
    inputs["total"] = [f"sum{n}" for n in range(chunks)]
    sizes = {name: 8 * MIB if name.startswith("chunk") else 8.0 for name in inputs}
    return graph(inputs, sizes)


def products(n: int = 6) -> OperandGraph:
    """A matrix product without its sums: each block reads a row's block and a column's."""
    inputs: dict[str | tuple[str, int, int], list[str]] = {}
    for i in range(n):
        inputs |= {f"row{i}": [], f"column{i}": []}
    for i in range(n):
        for j in range(n):
            inputs["product", i, j] = [f"row{i}", f"column{j}"]
            inputs[f"norm{i}.{j}"] = [("product", i, j)]
    return graph(inputs, dict.fromkeys(inputs, MIB))


def groups_of(g: OperandGraph, cluster: ClusterLimits = CLUSTER) -> Groups:
    roles = bytes(FREE if g.dependents[i] else VISIBLE for i in g)
    return find_groups(
        list(g.keys),
        g.inputs.starts,
        g.inputs.flat,
        list(g.nbytes),
        g.known,
        roles,
        [0] * len(g),
        [None] * len(g),
        [],
        cluster,
    )


def test_groups_and_bundles_are_those_of_the_policies() -> None:
    g = sums()
    limits = group_bounds(g, threads=4, thread_memory=1024 * MIB, batches=[None] * len(g))
    roles = [FREE if g.dependents[i] else VISIBLE for i in g]
    found = groups_of(g)
    assert found.heads == group_heads(g, roles, [0] * len(g), limits)
    assert found.bundles == siblings(g, roles, [0] * len(g), limits)
    assert len(set(found.heads)) < len(g)


def test_products_that_form_tiles_keep_their_results() -> None:
    g = products()
    found = groups_of(g, ClusterLimits(workers=4, threads=4, thread_memory=0))
    made = [i for i, key in enumerate(g.keys) if key[0] == "product"]
    assert [found.heads[i] for i in made] == made


def test_a_graph_is_joined_for_each_cluster_anew() -> None:
    memoization.forget()
    few, many = ClusterLimits(1, 4, 0.0), ClusterLimits(4, 4, 0.0)
    found = groups_of(products(), few)
    assert found is groups_of(products(), few)
    assert found.heads != groups_of(products(), many).heads
