"""Finds the tasks of a graph to run as one (`fusion`) or to bundle (`siblings`): `find_groups`."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from dask_marsched.core.graph import Edges, OperandGraph
from dask_marsched.core.memoization import memoized
from dask_marsched.policies.fusion import FREE, VISIBLE, group_bounds, group_heads
from dask_marsched.policies.planning.tiles import find_tiles
from dask_marsched.policies.siblings import siblings


class ClusterLimits(NamedTuple):
    """The size of a cluster, which bounds the groups."""

    workers: int
    threads: int
    thread_memory: float  #: Least bytes for each thread of a worker, 0 for unlimited.


class Groups(NamedTuple):
    """Groups of operands."""

    heads: Sequence[int]  #: For each operand the head of its group (`group_heads`).
    bundles: Sequence[Sequence[int]]  #: Operands that one task could make together (`siblings`).


@memoized
def find_groups(
    keys: Sequence[Hashable],
    starts: list[int],
    flat: list[int],
    nbytes: list[float],
    known: bytes,
    roles: bytes,
    kinds: list[int],
    batches: list[str | None],
    made: list[float],
    cluster: ClusterLimits,
) -> Groups:
    """Return the groups of a graph.

    ``starts`` and ``flat`` are the inputs of its operands (`Edges`). Of their ``keys`` only layers
    and indices count (`find_tiles`), so that they may be numbered. The others are as in
    `group_heads` and `group_bounds`.
    """
    graph = OperandGraph(keys, Edges(starts, flat), nbytes, known)
    own = bytearray(roles)
    # Whole tiles of a layer of products go to workers, so that products are not fused.
    for i in itertools.chain.from_iterable(find_tiles(graph, cluster.workers)):
        if own[i] == FREE:
            own[i] = VISIBLE
    limits = group_bounds(
        graph,
        threads=cluster.threads,
        thread_memory=cluster.thread_memory,
        batches=batches,
        made=made,
    )
    return Groups(group_heads(graph, own, kinds, limits), siblings(graph, own, kinds, limits))
