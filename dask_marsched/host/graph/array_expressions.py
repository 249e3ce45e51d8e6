"""Estimates the chunk sizes of array expressions (`array.query-planning`) from their nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_marsched.host.graph.array_layers import ArrayLayers, annotated_grid, nodes_of


def read_array_expressions(expr: Any, found: ArrayLayers) -> None:
    """Add the arrays of an expression's nodes to those of its layers; count unreadable nodes."""
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
        axes = kwargs["axis"]
        axes = range(len(chunks)) if axes is None else (axes,) if isinstance(axes, int) else axes
        reduced = {axis % len(chunks) for axis in axes}
        chunks = tuple((1,) * len(a) if i in reduced else a for i, a in enumerate(chunks))
    grid = annotated_grid(chunks, node.dtype, "numpy.ndarray", None)
    if grid is not None and node._name not in found.grids:
        found.grids[node._name] = grid.as_estimate()
        found.kinds[node._name] = node.dtype.kind
