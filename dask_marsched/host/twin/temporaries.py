"""Estimates the memory of intermediate results inside of fused tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask._task_spec import GraphNode, _execute_subgraph
from dask.typing import Key

from dask_marsched.core.chunk_sizes import Grid
from dask_marsched.host.graph.array_layers import ArrayLayers


def temporaries(dsk: Mapping[Key, GraphNode], layers: ArrayLayers) -> dict[Key, int]:
    """Return the bytes of intermediate results inside of fused tasks, where they are known.

    A fused task drops each intermediate after its last use. If its steps are in the order of use,
    it holds a step's inputs and its result at a time. A chunk counts as its layer's largest.
    """
    largest = {name: _largest(grid) for name, grid in layers.grids.items()}
    found: dict[Key, int] = {}
    known: dict[tuple[str, ...], int] = {}  # by the layers of their steps
    for key, node in dsk.items():
        if getattr(node, "func", None) is not _execute_subgraph:
            continue
        inner, result = node.args[0], node.args[1]  # type: ignore[attr-defined]  # is a Task
        steps = tuple(_layer(part) for part in inner)
        if steps not in known:
            known[steps] = _intermediates(inner, result, largest)
        if known[steps]:
            found[key] = known[steps]
    return found


def _largest(grid: Grid) -> int:
    return grid.nbytes(("", *(max(range(len(a)), key=a.__getitem__) for a in grid.lengths))) or 0


def _layer(key: Any) -> str:
    if isinstance(key, tuple):
        key = key[0]
    # Dask appends the pattern of the block to the name of a step of a fused blockwise task.
    return str(key).partition("_.")[0]


def _intermediates(inner: Mapping[Any, Any], result: Any, largest: Mapping[str, int]) -> int:
    sizes = {key: largest.get(_layer(key), 0) for key in inner if key != result}
    most = 0
    for key, step in inner.items():
        used = sum(sizes.get(other, 0) for other in getattr(step, "dependencies", ()))
        most = max(most, used + sizes.get(key, 0))
    return most
