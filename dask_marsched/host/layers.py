"""What Dask's expressions say about the chunks of the arrays in them."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from dask._expr import Expr
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer

from dask_marsched.core.chunk_sizes import Grid
from dask_marsched.host.reduction_stages import ReductionStages, first_task

#: Functions whose result depends on values, while the layer is annotated with the input's chunks.
_DATA_DEPENDENT = frozenset({"unique", "_unique_internal", "bincount", "getitem_variadic"})
#: Functions of NumPy and Dask that return fresh memory whatever strides their inputs have.
_ALLOCATING = frozenset(
    {
        "_apply_random",
        "_concatenate2",
        "_tensordot",
        "astype",
        "clip",
        "concatenate",
        "concatenate3",
        "concatenate_shaped",
        "finalize",
        "full_like",
        "isclose",
        "stack",
        "where",
    }
)


@dataclass(slots=True)
class ArrayLayers:
    """The arrays of an expression.

    Attributes
    ----------
    grids : dict of str to Grid
        By name of layer, which is the first element of the keys of its chunks.
    views : set of str
        Layers whose chunks may be views with strides of zero, so that they hold less than their
        shape says: their tasks have to be examined one by one.
    failures : Counter
        How often reading a layer failed, by what was read and the exception's type.
    """

    grids: dict[str, Grid] = field(default_factory=dict)
    views: set[str] = field(default_factory=set)
    failures: Counter[str] = field(default_factory=Counter)


def read_layers(expr: Any) -> ArrayLayers:
    """Read the chunks of all arrays in an expression.

    Parameters
    ----------
    expr : dask.Expr or HighLevelGraph
        As it arrives at the scheduler. No layer is materialized, nothing of it is changed.

    Returns
    -------
    ArrayLayers
        Never raises: what was not understood is left out and counted.
    """
    found = ArrayLayers()
    for part in _parts(expr):
        kind = type(part).__name__
        try:
            if isinstance(part, HighLevelGraph):
                _read_graph(part, found)
            else:
                _read_node(part, found)
        except Exception as error:
            found.failures[f"{kind}: {type(error).__name__}"] += 1
    return found


def _parts(expr: Any) -> Iterator[Any]:
    """Yield the graphs and the array expressions that an expression is made of."""
    stack = [expr]
    seen: set[int] = set()
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, HighLevelGraph):
            yield node
        elif isinstance(node, Expr):
            stack.extend(node.dependencies())
            graphs = [op for op in node.operands if isinstance(op, HighLevelGraph)]
            stack.extend(graphs)
            if not graphs and hasattr(type(node), "chunks"):
                yield node


# ---- Graphs of layers ------------------------------------------------------------------------


def _read_graph(graph: HighLevelGraph, found: ArrayLayers) -> None:
    grids: dict[str, Grid] = {}
    dtypes: dict[str, np.dtype[Any]] = {}
    for name, layer in graph.layers.items():
        notes = layer.collection_annotations
        if not notes or notes.get("type") != "dask.array.core.Array":
            continue
        try:
            dtype = np.dtype(notes["dtype"])
            grid = _grid(notes["chunks"], dtype, notes.get("chunk_type"), layer)
        except Exception as error:
            found.failures[f"annotations: {type(error).__name__}"] += 1
            continue
        if grid is not None:
            grids[name] = grid
            dtypes[name] = dtype
    names = _inputs_first(graph.dependencies)
    stages = ReductionStages(graph, grids, dtypes)
    for name in names:
        try:
            stages.read(name)
        except Exception as error:
            found.failures[f"reduction: {type(error).__name__}"] += 1
    grids.update(stages.grids)
    found.views |= _view_layers(graph, names, grids)
    found.grids.update(grids)


def _grid(chunks: Any, dtype: np.dtype[Any], chunk_type: Any, layer: Layer | None) -> Grid | None:
    """Return what the annotations promise; None if they leave the size open."""
    if dtype.hasobject or chunk_type not in ("numpy.ndarray", "numpy.ma.MaskedArray"):
        return None
    lengths = _whole_numbers(chunks)
    if lengths is None:
        return None
    uniform = certain = False
    if isinstance(layer, Blockwise):
        uniform = _is_broadcast_trick(layer.task.func)
        certain = not _is_data_dependent(layer)
    else:
        certain = True
    if not lengths and not uniform:
        return _scalar_grid(dtype, layer)
    return Grid(lengths, dtype.itemsize, certain=certain, uniform=uniform)


def _scalar_grid(dtype: np.dtype[Any], layer: Layer | None) -> Grid:
    """Chunks without axes: NumPy's functions return scalars for them, others may not."""
    certain = (
        isinstance(layer, Blockwise)
        and bool(layer.numblocks)
        and _returns_scalar(_innermost(layer.task.func, layer.task.kwargs))
    )
    return Grid((), scalar_nbytes(dtype), certain=certain)


@functools.lru_cache(maxsize=256)
def scalar_nbytes(dtype: np.dtype[Any]) -> int:
    """Bytes that a NumPy scalar takes as a Python object."""
    return sys.getsizeof(np.zeros((), dtype)[()])


def _whole_numbers(chunks: Any) -> tuple[tuple[int, ...], ...] | None:
    lengths = []
    for axis in chunks:
        if not set(map(type, axis)) <= {int}:
            if any(n != n for n in axis):
                return None
            axis = tuple(map(int, axis))
        lengths.append(axis)
    return tuple(lengths)


def _inputs_first(dependencies: Mapping[str, Iterable[str]]) -> list[str]:
    """Names of layers, every one after those that it depends on."""
    order: dict[str, None] = {}
    stack = list(dependencies)
    while stack:
        name = stack[-1]
        if name in order:
            stack.pop()
            continue
        missing = [d for d in dependencies.get(name, ()) if d not in order and d in dependencies]
        if missing:
            stack.extend(missing)
        else:
            order[stack.pop()] = None
    return list(order)


# ---- Views with strides of zero --------------------------------------------------------------


def _view_layers(graph: HighLevelGraph, names: list[str], grids: Mapping[str, Grid]) -> set[str]:
    views: set[str] = set()
    repeated: set[str] = set()
    for name in names:
        layer = graph.layers.get(name)
        grid = grids.get(name)
        if layer is None:
            continue
        if grid is not None and grid.uniform:
            repeated.add(name)
        elif _makes_views(layer):
            views.add(name)
            repeated.add(name)
        elif repeated and not repeated.isdisjoint(graph.dependencies.get(name, ())):
            if isinstance(layer, Blockwise) and allocates(
                _innermost(layer.task.func, layer.task.kwargs)
            ):
                continue
            views.add(name)
            repeated.add(name)
    return views


def _makes_views(layer: Layer) -> bool:
    if isinstance(layer, Blockwise):
        return _innermost(layer.task.func) is np.broadcast_to
    task = first_task(layer)
    if isinstance(task, np.ndarray):
        return 0 in task.strides
    func = task[0] if type(task) is tuple and task else getattr(task, "func", None)
    return func is np.broadcast_to


def _innermost(func: Any, kwargs: Mapping[str, Any] | None = None) -> Any:
    """Unwrap what only binds arguments or fixes the type of the result."""
    while True:
        if getattr(func, "__name__", "") == "_enforce_dtype" and kwargs:
            func, kwargs = kwargs.get("enforce_dtype_function"), None
        elif isinstance(func, functools.partial) or hasattr(func, "_partial"):
            func = func.func
        else:
            return func


def allocates(func: Any) -> bool:
    """Whether a function is known to return fresh memory, never a view of its input."""
    if type(func) is np.ufunc:
        return True
    module = getattr(func, "__module__", "") or ""
    name = getattr(func, "__name__", "")
    if module in ("operator", "_operator"):
        return name != "getitem"
    return name in _ALLOCATING and module.partition(".")[0] in ("dask", "numpy")


def _returns_scalar(func: Any) -> bool:
    module = getattr(func, "__module__", "") or ""
    return type(func) is np.ufunc or module in ("operator", "_operator")


def _is_broadcast_trick(func: Any) -> bool:
    return getattr(_innermost(func), "__name__", "") == "_broadcast_trick_inner"


def _is_data_dependent(layer: Blockwise) -> bool:
    name = getattr(_innermost(layer.task.func, layer.task.kwargs), "__name__", "")
    if name in _DATA_DEPENDENT:
        return True
    # An array indexed with an array of masks: the result has as many elements as are set.
    arrays = sum(axes is not None and isinstance(source, str) for source, axes in layer.indices)
    return name == "getitem" and arrays - len(layer.io_deps) > 1


# ---- Array expressions (array.query-planning) ------------------------------------------------


def _read_node(node: Any, found: ArrayLayers) -> None:
    meta = getattr(node, "_meta", None)
    kind = type(meta)
    grid = _grid(node.chunks, np.dtype(node.dtype), f"{kind.__module__}.{kind.__name__}", None)
    if grid is not None:
        found.grids[node._name] = grid
