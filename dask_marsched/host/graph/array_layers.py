"""Reads the chunk sizes of arrays off the layers of a Dask expression, before tasks exist."""

from __future__ import annotations

import functools
import graphlib
import math
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from dask._expr import Expr, HLGExpr, _HLGExprSequence
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from dask_marsched.core.chunk_sizes import Grid
from dask_marsched.host.graph.reduction_stages import (
    ReductionStages,
    first_task,
    keywords,
    trusted,
)

_CHUNK_TYPES = frozenset({"numpy.ndarray", "numpy.ma.MaskedArray"})
#: Functions whose result sizes depend on values, though Dask annotates the input's chunks.
_DATA_DEPENDENT = frozenset({
    "_inner_apply_along_axis", "_unique_internal", "bincount", "getitem_variadic",
    "slice_with_int_dask_array", "unique",
})  # fmt: skip
_TASKS_A_CHUNK = 8  #: Of layers that are neither blockwise nor materialized.
_NONE_NBYTES = sys.getsizeof(None)
#: Functions of NumPy and Dask that return fresh memory whatever strides their inputs have.
_ALLOCATING = frozenset({
    "_apply_random", "_concatenate2", "_tensordot", "astype", "clip", "concatenate",
    "concatenate3", "concatenate_shaped", "finalize", "full_like", "isclose", "stack", "where",
})  # fmt: skip


@dataclass(slots=True)
class ArrayLayers:
    """The arrays of an expression, by name of layer: the first element of their chunks' keys."""

    #: Lengths and element sizes of the chunks.
    grids: dict[str, Grid] = field(default_factory=dict)
    #: NumPy's letters for the kinds of the annotated types, such as "f".
    kinds: dict[str, str] = field(default_factory=dict)
    #: Layers whose chunks may be views with strides of zero, which hold less than their shape says:
    #: their tasks have to be examined one by one.
    views: set[str] = field(default_factory=set)
    #: By subject and type of the exception.
    failures: Counter[str] = field(default_factory=Counter)


def read_layers(expr: Any, *, counts_once: bool = False) -> ArrayLayers:
    """Read the chunks of an expression's arrays; count layers that cannot be read. Never raises.

    For ``counts_once`` see `ReductionStages`.
    """
    found = ArrayLayers()
    for graph in graphs_of(expr):
        try:
            _read_graph(graph, found, counts_once)
        except Exception as error:
            found.failures[f"graph: {type(error).__name__}"] += 1
    return found


def nodes_of(expr: Any) -> list[Any]:
    """Return an expression and all that it depends on."""
    nodes: dict[int, Any] = {}
    stack = [expr]
    while stack:
        node = stack.pop()
        if id(node) not in nodes:
            nodes[id(node)] = node
            stack += node.dependencies() if isinstance(node, Expr) else []
    return list(nodes.values())


def may_have_more_tasks(expr: Any, most: int) -> bool:
    """Return whether an expression may make more tasks than ``most``, without making them."""
    if not all(isinstance(node, HLGExpr | _HLGExprSequence) for node in nodes_of(expr)):
        return True
    count = 0.0
    for graph in graphs_of(expr):
        for layer in graph.layers.values():
            count += _about_length(layer)
            if count > most:
                return True
    return False


def _about_length(layer: Layer) -> float:
    if isinstance(layer, Blockwise | MaterializedLayer):
        return len(layer)
    # To tell their length, others make all tasks. `map_overlap` cuts up to 9 pieces off a chunk.
    notes = layer.collection_annotations
    chunks = notes.get("chunks") if notes else None
    return _TASKS_A_CHUNK * math.prod(map(len, chunks)) if chunks else math.inf


def graphs_of(expr: Any) -> Iterator[HighLevelGraph]:
    """Yield the graphs of layers in an expression, each once."""
    seen: set[int] = set()
    for node in nodes_of(expr):
        for graph in [node, *getattr(node, "operands", ())]:
            if isinstance(graph, HighLevelGraph) and id(graph) not in seen:
                seen.add(id(graph))
                yield graph


# ---- Graphs of layers ------------------------------------------------------------------------


def _read_graph(graph: HighLevelGraph, found: ArrayLayers, counts_once: bool) -> None:
    grids: dict[str, Grid] = {}
    dtypes: dict[str, np.dtype[Any]] = {}
    for name, layer in graph.layers.items():
        notes = layer.collection_annotations
        if not notes or notes.get("type") != "dask.array.core.Array":
            continue
        try:
            dtype = np.dtype(notes["dtype"])
            grid = annotated_grid(notes["chunks"], dtype, notes.get("chunk_type"), layer)
        except Exception as error:
            found.failures[f"annotations: {type(error).__name__}"] += 1
            continue
        if grid is not None:
            grids[name] = grid
            dtypes[name] = dtype
    order = graphlib.TopologicalSorter(graph.dependencies).static_order()
    names = [name for name in order if name in graph.dependencies]
    _doubt_careless_annotations(graph, names, grids)
    stages = ReductionStages(graph, grids, dtypes, counts_once=counts_once)
    for name in names:
        try:
            stages.read(name)
        except Exception as error:
            found.failures[f"reduction: {type(error).__name__}"] += 1
    grids.update(stages.grids)
    _doubt_scalars(graph, names, grids)
    found.views |= _view_layers(graph, names, grids, stages.measured)
    found.grids.update(grids)
    for name in grids.keys() - stages.grids.keys():
        found.kinds[name] = dtypes[name].kind


def _doubt_careless_annotations(
    graph: HighLevelGraph, names: list[str], grids: dict[str, Grid]
) -> None:
    """Mark the grids of layers that Dask may have annotated wrongly.

    Dask loses the type of arrays that derive from sparse or device arrays. Its linear algebra
    states shapes of results even if the lengths of the chunks are unknown.
    """
    other: set[str] = set()
    unknown: set[str] = set()
    for name in names:
        layer = graph.layers.get(name)
        notes = layer.collection_annotations if layer is not None else None
        inputs = set(graph.dependencies.get(name, ()))
        if not notes:
            odd = layer is not None and keeps_its_type(first_task(layer))
            unknown |= {name} if odd or inputs & unknown else set()
            other |= {name} if inputs & other else set()
            continue
        if notes.get("chunk_type") not in _CHUNK_TYPES or inputs & other:
            other.add(name)
        grid = grids.get(name)
        if grid is None:
            unknown.add(name)
            continue
        if grid.lengths and not grid.certain:
            unknown.add(name)
        if inputs & (unknown | other):
            grids[name] = grid.as_estimate()


def _doubt_scalars(graph: HighLevelGraph, names: list[str], grids: dict[str, Grid]) -> None:
    """Mark the results of zero-dimensional chunks that may not be NumPy scalars."""
    for name in names:
        grid = grids.get(name)
        if grid is None or grid.lengths or not grid.certain:
            continue
        inputs = [grids[d] for d in graph.dependencies.get(name, ()) if d in grids]
        if any(not source.certain and not source.lengths for source in inputs):
            grids[name] = grid.as_estimate()


def keeps_its_type(value: Any) -> bool:
    """Return whether the parts of an array-like are likely not to be NumPy arrays."""
    kind = type(value)
    return not isinstance(value, np.ndarray) and (
        hasattr(kind, "__array_ufunc__")
        or hasattr(kind, "__array_function__")
        or kind.__module__.partition(".")[0] in ("scipy", "sparse", "cupy", "cupyx")
    )


def annotated_grid(
    chunks: Any, dtype: np.dtype[Any], chunk_type: Any, layer: Layer | None
) -> Grid | None:
    """Return the grid that a layer is annotated with; None if that leaves the sizes open."""
    if dtype.hasobject or chunk_type not in _CHUNK_TYPES:
        return None
    lengths = _whole_numbers(chunks)
    if lengths is None:
        return None
    uniform, certain = False, True
    if isinstance(layer, Blockwise):
        if getattr(layer.task.func, "__name__", "") == "load_store_chunk":
            return _stored_grid(lengths, dtype, layer)
        func = innermost(layer.task.func)
        uniform = getattr(func, "__name__", "") == "_broadcast_trick_inner"
        certain = not _is_unsure(layer)
    # Masked arrays are measured by their data, but their reductions return other types.
    certain = certain and chunk_type == "numpy.ndarray"
    if not lengths and not uniform:
        return _scalar_grid(dtype, layer)
    return Grid(lengths, dtype.itemsize, certain=certain, uniform=uniform)


def _stored_grid(lengths: Any, dtype: np.dtype[Any], layer: Blockwise) -> Grid:
    """Return the grid of a layer that stores chunks: its results are None or the stored arrays."""
    if not layer.task.kwargs.get("return_stored"):
        ones = tuple((1,) * len(axis) for axis in lengths)
        return Grid(ones, 0, overhead=_NONE_NBYTES)
    loaded = bool(layer.task.kwargs.get("load_stored"))
    return Grid(lengths, dtype.itemsize, certain=loaded)


def _scalar_grid(dtype: np.dtype[Any], layer: Layer | None) -> Grid:
    """Return the grid of zero-dimensional chunks: NumPy returns scalars, others may not."""
    certain = (
        isinstance(layer, Blockwise)
        and bool(layer.numblocks)
        # two strings compare to a bool of Python; scalars of strings have the size of their value
        and dtype.kind not in "bUSV"
        and _returns_scalar(innermost(layer.task.func, layer.task.kwargs))
    )
    return Grid((), _scalar_nbytes(dtype), certain=certain)


@functools.lru_cache(maxsize=256)
def _scalar_nbytes(dtype: np.dtype[Any]) -> int:
    """Return the bytes of a NumPy scalar as a Python object."""
    return sys.getsizeof(np.zeros((), dtype)[()])


def _whole_numbers(chunks: Any) -> tuple[tuple[int, ...], ...] | None:
    """Return the lengths of chunks as integers; None if some are NaN, that is unknown."""
    lengths = []
    for axis in chunks:
        if not set(map(type, axis)) <= {int}:
            if any(n != n for n in axis):
                return None
            axis = tuple(map(int, axis))
        lengths.append(axis)
    return tuple(lengths)


# ---- Views with strides of zero --------------------------------------------------------------


def _view_layers(
    graph: HighLevelGraph, names: list[str], grids: Mapping[str, Grid], fresh: Collection[str]
) -> set[str]:
    """Return the layers that may hold such views; `fresh` ones are known not to."""
    views: set[str] = set()
    repeated: set[str] = set()
    for name in names:
        layer = graph.layers.get(name)
        grid = grids.get(name)
        if layer is None or name in fresh:
            continue
        if grid is not None and grid.uniform:
            repeated.add(name)
        elif _makes_views(layer):
            views.add(name)
            repeated.add(name)
        elif repeated and not repeated.isdisjoint(graph.dependencies.get(name, ())):
            if isinstance(layer, Blockwise) and allocates(
                innermost(layer.task.func, layer.task.kwargs)
            ):
                continue
            views.add(name)
            repeated.add(name)
    return views


def _makes_views(layer: Layer) -> bool:
    if isinstance(layer, Blockwise):
        return innermost(layer.task.func) is np.broadcast_to
    task = first_task(layer)
    if isinstance(task, np.ndarray):
        return 0 in task.strides
    func = task[0] if type(task) is tuple and task else getattr(task, "func", None)
    return func is np.broadcast_to


def innermost(func: Any, kwargs: Mapping[str, Any] | None = None) -> Any:
    """Unwrap partials and Dask's check of the result's type."""
    while True:
        if getattr(func, "__name__", "") == "_enforce_dtype" and kwargs:
            func, kwargs = kwargs.get("enforce_dtype_function"), None
        elif isinstance(func, functools.partial):
            func = func.func
        # of toolz; other objects may have any attribute, or raise
        elif type(func).__name__ == "curry" and hasattr(func, "_partial"):
            func = func._partial.func
        else:
            return func


def allocates(func: Any) -> bool:
    """Return whether a function is known to return fresh memory, never a view of its input."""
    if type(func) is np.ufunc:
        return True
    module = getattr(func, "__module__", "") or ""
    name = getattr(func, "__name__", "")
    if module in ("operator", "_operator"):
        return name != "getitem"
    return name in _ALLOCATING and module.partition(".")[0] in ("dask", "numpy")


def _returns_scalar(func: Any) -> bool:
    """Return whether a function of zero-dimensional arguments returns a NumPy scalar."""
    module = getattr(func, "__module__", "") or ""
    if module == "dask.array.reductions":
        return getattr(func, "__name__", "") == "_sqrt"
    return type(func) is np.ufunc or module in ("operator", "_operator")


def _is_unsure(layer: Blockwise) -> bool:
    """Return whether the results of a layer's function need not fit its annotations."""
    func, kwargs = layer.task.func, layer.task.kwargs
    name = getattr(innermost(func, kwargs), "__name__", "")
    if name in _DATA_DEPENDENT or kwargs.get("asarray") is False:
        return True
    # First stages of other libraries' reductions have a bound axis too, and may return dicts.
    if "axis" in keywords(func) and not trusted(func):
        return True
    if any(axes is None and keeps_its_type(source) for source, axes in layer.indices):
        return True
    # Indexing with a boolean array: the result has as many elements as the mask has set.
    arrays = sum(axes is not None and isinstance(source, str) for source, axes in layer.indices)
    return name == "getitem" and arrays - len(layer.io_deps) > 1
