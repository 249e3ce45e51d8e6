"""The chunks of array expressions (`array.query-planning`), which know them themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
from dask._expr import Expr

from dask_marsched.core.chunk_sizes import Grid
from dask_marsched.host.graph.array_layers import (
    ArrayLayers,
    allocates,
    annotated_grid,
    innermost,
    is_unsure_function,
    returns_scalar,
    whole_numbers,
)
from dask_marsched.host.graph.reduction_stages import grid_of, probe_length, trusted


def read_array_expressions(expr: Any, found: ArrayLayers) -> None:
    """Add the arrays of an expression's nodes to what its graphs of layers told.

    Parameters
    ----------
    expr : dask.Expr
        As it arrives at the scheduler.
    found : ArrayLayers
        Is extended. What was not understood is counted there; nothing is raised.
    """
    reader = _Reader(found)
    for node in _inputs_first(expr):
        try:
            reader.read(node)
        except Exception as error:
            found.failures[f"{type(node).__name__}: {type(error).__name__}"] += 1


def _inputs_first(expr: Any) -> list[Any]:
    """Nodes of array expressions, every one after those that it depends on."""
    order: dict[int, Any] = {}
    entered: set[int] = set()
    stack = [expr] if isinstance(expr, Expr) else []
    while stack:
        node = stack[-1]
        if id(node) in entered:
            order.setdefault(id(node), stack.pop())
            continue
        entered.add(id(node))
        stack.extend(d for d in node.dependencies() if id(d) not in entered)
    return [node for node in order.values() if hasattr(type(node), "chunks")]


class _Reader:
    def __init__(self, found: ArrayLayers) -> None:
        self._found = found
        # What stages of reductions return for a probe, by name of node.
        self._results: dict[str, Any] = {}
        self._repeated: set[str] = set()

    def read(self, node: Any) -> None:
        """Derive the grid of a node whose inputs have been read before."""
        name = node._name
        if name in self._found.grids:
            return
        lengths = whole_numbers(node.chunks)
        if lengths is None:
            return
        kind = type(node).__name__
        if kind == "PartialReduce":
            grid = self._combined(node, lengths)
        elif _starts_reduction(node):
            grid = self._first(node, lengths)
        else:
            grid = _plain_grid(node, kind)
            self._note_views(node, name, kind)
        if grid is not None:
            self._found.grids[name] = grid
            if name not in self._results:
                self._found.kinds[name] = node.dtype.kind

    def _first(self, node: Any, lengths: Any) -> Grid | None:
        axes = node.kwargs["axis"]
        axes = range(len(lengths)) if axes is None else (axes,) if isinstance(axes, int) else axes
        reduced = frozenset(axis % len(lengths) for axis in axes)
        lengths = tuple((1,) * len(a) if i in reduced else a for i, a in enumerate(lengths))
        arrays = [array for array in node.args[::2] if hasattr(array, "chunks")]
        if trusted(node.func) and len(arrays) == len(node.args) // 2:
            probes = [np.ones(tuple(map(probe_length, a.chunks)), a.dtype) for a in arrays]
            with np.errstate(all="ignore"):
                result = node.func(*probes, **node.kwargs)
            grid = grid_of(result, lengths, reduced)
            if grid is not None:
                self._results[node._name] = result
                empty = any(0 in axis for array in arrays for axis in array.chunks)
                return grid.as_estimate() if empty else grid
        return Grid(lengths, node.dtype.itemsize, certain=False)

    def _combined(self, node: Any, lengths: Any) -> Grid | None:
        probe = self._results.get(node.array._name)
        if probe is None or not trusted(node.func):
            grid = annotated_grid(lengths, node.dtype, _type_name(node._meta), None)
            return None if grid is None else grid.as_estimate()
        nested = probe
        for _ in node.split_every:
            nested = [nested]
        with np.errstate(all="ignore"):
            result = node.func(nested)
        reduced = frozenset(node.split_every) if node.keepdims else frozenset()
        grid = grid_of(result, lengths, reduced)
        if grid is not None:
            self._results[node._name] = result
        return grid

    def _note_views(self, node: Any, name: str, kind: str) -> None:
        inputs = {d._name for d in node.dependencies() if hasattr(type(d), "chunks")}
        if _is_uniform(node) or kind == "BroadcastTo" or _innermost_of(node) is np.broadcast_to:
            self._repeated.add(name)
        elif self._repeated.isdisjoint(inputs) or allocates(_innermost_of(node)):
            return
        self._repeated.add(name)
        if not _is_uniform(node):
            self._found.views.add(name)


def _starts_reduction(node: Any) -> bool:
    if not _is_blockwise(node):
        return False
    kwargs = node.kwargs or {}
    return "axis" in kwargs and bool(kwargs.get("keepdims"))


def _plain_grid(node: Any, kind: str) -> Grid | None:
    grid = annotated_grid(node.chunks, node.dtype, _type_name(node._meta), None)
    if grid is None:
        return None
    if _is_uniform(node):
        return Grid(grid.lengths, node.dtype.itemsize, uniform=True)
    if not grid.lengths:
        scalar = kind == "Elemwise" and returns_scalar(_innermost_of(node))
        scalar = scalar and node.dtype.kind != "b"
        return Grid((), grid.itemsize, certain=scalar)
    doubtful = _is_blockwise(node) and is_unsure_function(node.func, node.kwargs or {})
    return grid.as_estimate() if doubtful else grid


def _is_blockwise(node: Any) -> bool:
    return any(base.__name__ == "Blockwise" for base in type(node).__mro__)


def _is_uniform(node: Any) -> bool:
    return any(base.__name__ == "BroadcastTrick" for base in type(node).__mro__)


def _innermost_of(node: Any) -> Any:
    return innermost(node.func, node.kwargs) if _is_blockwise(node) else None


def _type_name(meta: Any) -> str:
    kind = type(meta)
    if isinstance(meta, np.generic):
        kind = np.ndarray
    return f"{kind.__module__}.{kind.__name__}"
