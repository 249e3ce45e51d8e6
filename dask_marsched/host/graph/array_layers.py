"""What Dask's expressions say about the chunks of the arrays in them."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from dask._expr import Expr
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer

from dask_marsched.core.chunk_sizes import Grid
from dask_marsched.host.graph.reduction_stages import (
    ReductionStages,
    first_task,
    keywords,
    trusted,
)

_CHUNK_TYPES = frozenset({"numpy.ndarray", "numpy.ma.MaskedArray"})
#: Functions whose result depends on values, while the layer is annotated with the input's chunks.
_DATA_DEPENDENT = frozenset(
    {
        "_unique_internal",
        "bincount",
        "getitem_variadic",
        "slice_with_int_dask_array",
        "unique",
    }
)
_NONE_NBYTES = sys.getsizeof(None)
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
    kinds : dict of str to str
        NumPy's letters for the kinds of the annotated types, such as "f", by name of layer.
    views : set of str
        Layers whose chunks may be views with strides of zero, so that they hold less than their
        shape says: their tasks have to be examined one by one.
    failures : Counter
        How often reading a layer failed, by what was read and the exception's type.
    """

    grids: dict[str, Grid] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
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
    for graph in _graphs(expr):
        try:
            _read_graph(graph, found)
        except Exception as error:
            found.failures[f"graph: {type(error).__name__}"] += 1
    return found


def _graphs(expr: Any) -> Iterator[HighLevelGraph]:
    """Yield the graphs of layers that an expression is made of."""
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
            stack.extend(op for op in node.operands if isinstance(op, HighLevelGraph))


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
            grid = annotated_grid(notes["chunks"], dtype, notes.get("chunk_type"), layer)
        except Exception as error:
            found.failures[f"annotations: {type(error).__name__}"] += 1
            continue
        if grid is not None:
            grids[name] = grid
            dtypes[name] = dtype
    names = _inputs_first(graph.dependencies)
    _doubt_careless_annotations(graph, names, grids)
    stages = ReductionStages(graph, grids, dtypes)
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
    """Mark what Dask may have annotated wrongly.

    It loses track of the type of what derives from sparse or device arrays; and where chunks are
    of unknown length, its linear algebra nevertheless states the shapes of the results.
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
    """Mark what is computed from chunks without axes that may be no NumPy scalars."""
    for name in names:
        grid = grids.get(name)
        if grid is None or grid.lengths or not grid.certain:
            continue
        inputs = [grids[d] for d in graph.dependencies.get(name, ()) if d in grids]
        if any(not source.certain and not source.lengths for source in inputs):
            grids[name] = grid.as_estimate()


def keeps_its_type(value: Any) -> bool:
    """Whether parts of an array are likely not to be arrays of NumPy."""
    kind = type(value)
    return not isinstance(value, np.ndarray) and (
        hasattr(kind, "__array_ufunc__")
        or hasattr(kind, "__array_function__")
        or kind.__module__.partition(".")[0] in ("scipy", "sparse", "cupy", "cupyx")
    )


def annotated_grid(
    chunks: Any, dtype: np.dtype[Any], chunk_type: Any, layer: Layer | None
) -> Grid | None:
    """Return what the annotations promise; None if they leave the size open."""
    if dtype.hasobject or chunk_type not in _CHUNK_TYPES:
        return None
    lengths = whole_numbers(chunks)
    if lengths is None:
        return None
    uniform = certain = False
    if isinstance(layer, Blockwise):
        if _is_store(layer):
            return _stored_grid(lengths, dtype, layer)
        uniform = _is_broadcast_trick(layer.task.func)
        certain = not _is_unsure(layer)
    else:
        certain = True
    # Masked arrays count as much as their data, but reductions of them return other things.
    certain = certain and chunk_type == "numpy.ndarray"
    if not lengths and not uniform:
        return _scalar_grid(dtype, layer)
    return Grid(lengths, dtype.itemsize, certain=certain, uniform=uniform)


def _is_store(layer: Blockwise) -> bool:
    return getattr(layer.task.func, "__name__", "") == "load_store_chunk"


def _stored_grid(lengths: Any, dtype: np.dtype[Any], layer: Blockwise) -> Grid:
    """Return the grid of a layer that stores: None, the target, or what was stored."""
    if not layer.task.kwargs.get("return_stored"):
        ones = tuple((1,) * len(axis) for axis in lengths)
        return Grid(ones, 0, overhead=_NONE_NBYTES)
    loaded = bool(layer.task.kwargs.get("load_stored"))
    return Grid(lengths, dtype.itemsize, certain=loaded)


def _scalar_grid(dtype: np.dtype[Any], layer: Layer | None) -> Grid:
    """Chunks without axes: NumPy's functions return scalars for them, others may not."""
    certain = (
        isinstance(layer, Blockwise)
        and bool(layer.numblocks)
        and dtype.kind != "b"  # two strings compare to a bool of Python
        and returns_scalar(innermost(layer.task.func, layer.task.kwargs))
    )
    return Grid((), scalar_nbytes(dtype), certain=certain)


@functools.lru_cache(maxsize=256)
def scalar_nbytes(dtype: np.dtype[Any]) -> int:
    """Bytes that a NumPy scalar takes as a Python object."""
    return sys.getsizeof(np.zeros((), dtype)[()])


def whole_numbers(chunks: Any) -> tuple[tuple[int, ...], ...] | None:
    """Return the lengths of chunks as integers; None if some are unknown (NaN)."""
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


def _view_layers(
    graph: HighLevelGraph, names: list[str], grids: Mapping[str, Grid], fresh: Collection[str]
) -> set[str]:
    """Names of layers that may hold such views; `fresh` ones are known not to."""
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


def returns_scalar(func: Any) -> bool:
    """Whether a function returns a NumPy scalar, not an array, for arguments without axes."""
    module = getattr(func, "__module__", "") or ""
    if module == "dask.array.reductions":
        return getattr(func, "__name__", "") == "_sqrt"
    return type(func) is np.ufunc or module in ("operator", "_operator")


def _is_broadcast_trick(func: Any) -> bool:
    return getattr(innermost(func), "__name__", "") == "_broadcast_trick_inner"


def _is_unsure(layer: Blockwise) -> bool:
    func, kwargs = layer.task.func, layer.task.kwargs
    if is_unsure_function(func, kwargs) or kwargs.get("asarray") is False:
        return True
    if any(axes is None and keeps_its_type(source) for source, axes in layer.indices):
        return True
    # An array indexed with an array of masks: the result has as many elements as are set.
    arrays = sum(axes is not None and isinstance(source, str) for source, axes in layer.indices)
    is_getter = getattr(innermost(func, kwargs), "__name__", "") == "getitem"
    return is_getter and arrays - len(layer.io_deps) > 1


def is_unsure_function(func: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether the results of a function are known not to follow from its layer's annotations."""
    if getattr(innermost(func, kwargs), "__name__", "") in _DATA_DEPENDENT:
        return True
    # Other libraries bind an axis to what starts a reduction of theirs. Its results may be dicts.
    return "axis" in keywords(func) and not trusted(func)
