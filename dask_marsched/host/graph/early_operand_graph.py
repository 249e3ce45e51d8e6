"""Reads a graph for the planner in the scheduler's offload thread, before its tasks exist."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask._task_spec import GraphNode
from dask.typing import Key

from dask_marsched.core.graph import Edges, OperandGraph
from dask_marsched.host.graph.result_sizes import ChunkSizes


def operand_graph(
    dsk: Mapping[Key, GraphNode], order: Mapping[Key, Any], sizes: ChunkSizes
) -> OperandGraph | None:
    """Return the graph that the planner will read from the scheduler's tasks.

    None if that follows only from the scheduler's state: a size is unknown, or a task reads results
    of other graphs.
    """
    exact, estimated = sizes.exact, sizes.estimated
    keys = sorted(dsk, key=order.__getitem__)
    nbytes: list[float] = []
    for key in keys:
        size = exact.get(key)
        if size is None:
            size = estimated.get(key)
            if size is None:
                return None
        nbytes.append(size)
    get = {key: i for i, key in enumerate(keys)}.get
    starts, flat = [0], list[int]()
    for key in keys:
        dependencies = dsk[key].dependencies
        if dependencies:
            own = [j for other in dependencies if (j := get(other)) is not None]
            if len(own) < len(dependencies):
                return None
            if len(own) > 1:
                own.sort()
            flat.extend(own)
        starts.append(len(flat))
    return OperandGraph(keys, Edges(starts, flat), nbytes, b"\1" * len(keys))
