"""Derives the sizes of a graph's results before anything runs."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from dask._task_spec import DataNode, GraphNode, Task, _execute_subgraph
from dask.array.chunk import getitem
from dask.typing import Key

from dask_marsched.core.chunk_sizes import Grid
from dask_marsched.host.graph.array_layers import ArrayLayers, annotated_grid, nodes_of, read_layers
from dask_marsched.host.graph.reduction_stages import axes_of, reduced_chunks
from dask_marsched.host.graph.size_rules import named
from dask_marsched.host.graph.task_sizes import TaskSizes


@dataclass(slots=True)
class ChunkSizes:
    """Sizes in bytes of results before the run; no key is in both ``exact`` and ``estimated``."""

    #: As `dask.sizeof.sizeof` will measure them. Chunks and types that users declare are trusted.
    exact: dict[Key, int] = field(default_factory=dict)
    #: Such as partial results of reductions by functions other than Dask's.
    estimated: dict[Key, int] = field(default_factory=dict)
    #: The largest result within a task of several that has no inputs: Dask joins a chunk with the
    #: first step of its reduction.
    within: dict[Key, int] = field(default_factory=dict)
    #: How often a part of the graph could not be read, by kind and type of the exception.
    failures: dict[str, int] = field(default_factory=dict)


def chunk_nbytes(
    expr: Any, dsk: Mapping[Key, GraphNode], *, counts_once: bool = False
) -> ChunkSizes:
    """Return the known sizes of the results of an expression with tasks ``dsk``. Never raises.

    For ``counts_once`` see `dask_marsched.host.graph.reduction_stages.ReductionStages`.
    """
    layers = read_layers(expr, counts_once=counts_once)
    read_array_expressions(expr, layers)
    sizes = ChunkSizes()
    pending = _measure(dsk, layers, sizes)
    tasks = TaskSizes(dsk, layers)
    for key in pending:
        try:
            chunk = tasks.of_key(key)
        except Exception as error:
            layers.failures[f"task: {type(error).__name__}"] += 1
            continue
        if chunk is not None:
            (sizes.exact if chunk.certain else sizes.estimated)[key] = chunk.nbytes
    sizes.failures = dict(layers.failures)
    return sizes


def _measure(dsk: Mapping[Key, GraphNode], layers: ArrayLayers, sizes: ChunkSizes) -> list[Key]:
    """Size the chunks of annotated layers; return the keys whose tasks must be examined."""
    views = layers.views
    grids = {name: grid for name, grid in layers.grids.items() if name not in views}
    exact, estimated = sizes.exact, sizes.estimated
    pending: list[Key] = []
    name: object = None
    grid: Grid | None = None
    for key, node in dsk.items():
        chunk: Any = key
        if type(chunk) is not tuple or not chunk:
            pending.append(key)
            continue
        if chunk[0] != name:
            name = chunk[0]
            grid = grids.get(name) if isinstance(name, str) else None
        own = grid
        nbytes = None
        if own is None:
            own, nbytes = _size_of_task(node, name, grids, views)
            if type(node) is Task and node.func is _execute_subgraph and not node.dependencies:
                sizes.within[key] = _largest(node.args[0], grids)
        elif type(node) is not DataNode:
            nbytes = own.nbytes(chunk)
        if own is None or nbytes is None:
            pending.append(key)
        elif own.certain:
            exact[key] = nbytes
        elif own.lengths:
            estimated[key] = nbytes
        else:
            pending.append(key)  # the task may tell whether it returns a scalar
    return pending


def _size_of_task(
    node: GraphNode, name: object, grids: Mapping[str, Grid], views: set[str]
) -> tuple[Grid | None, int | None]:
    """Size fused tasks and slices, whose own keys name no layer."""
    chunk: Any
    if type(node) is not Task:
        return None, None
    func, args = node.func, node.args
    is_fused = func is _execute_subgraph
    if is_fused:
        # A fused task is named after all of its parts; the last one determines the result.
        chunk = args[1]
    elif (func is getitem or func is operator.getitem) and len(args) == 2 and name not in views:
        chunk = named(args[0])
    else:
        return None, None
    grid = grids.get(chunk[0]) if type(chunk) is tuple and chunk else None
    if grid is None:
        return None, None
    return grid, grid.nbytes(chunk) if is_fused else grid.sliced_nbytes(chunk, args[1])


def _largest(keys: Iterable[Any], grids: Mapping[str, Grid]) -> int:
    """Return the bytes of the largest of the chunks with these keys, 0 if none is known."""
    found = 0
    for key in keys:
        grid = grids.get(key[0]) if type(key) is tuple and key else None
        if grid is not None:
            found = max(found, grid.nbytes(key) or 0)
    return found


def read_array_expressions(expr: Any, found: ArrayLayers) -> None:
    """Add the arrays of an expression's nodes to those of its layers.

    Never raises: nodes that cannot be read are counted as failures.
    """
    for node in nodes_of(expr):
        if hasattr(type(node), "chunks"):
            try:
                _read_node(node, found)
            except Exception as error:
                found.failures[f"{type(node).__name__}: {type(error).__name__}"] += 1


def _read_node(node: Any, found: ArrayLayers) -> None:
    if not isinstance(node._meta, np.ndarray | np.generic):
        return
    chunks = node.chunks
    kwargs = getattr(node, "kwargs", None) or {}
    if "axis" in kwargs and kwargs.get("keepdims"):
        # The first stage of a reduction has the chunks of its input; it reduces them to one each.
        chunks = reduced_chunks(chunks, axes_of(kwargs["axis"], len(chunks)))
    grid = annotated_grid(chunks, node.dtype, "numpy.ndarray", None)
    if grid is not None and node._name not in found.grids:
        found.grids[node._name] = grid.as_estimate()
        found.kinds[node._name] = node.dtype.kind
