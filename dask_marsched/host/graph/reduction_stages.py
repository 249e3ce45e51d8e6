"""Determines the chunk sizes of the stages of tree reductions by running them on tiny arrays.

Dask annotates the first stage with the chunks of its *input*, and the type of the partial results
is unknown: they may be dicts of several arrays, or records. Only functions of NumPy and Dask are
run, never a user's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
from dask._task_spec import GraphNode, convert_legacy_task
from dask.blockwise import Blockwise, blockwise_token
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer
from dask.sizeof import sizeof

from dask_marsched.core.chunk_sizes import Grid

#: Elements along every axis of the probe. Any length but 1 tells kept axes from reduced ones.
_PROBE_LENGTH = 2
_Chunks = tuple[tuple[int, ...], ...]
_TRUSTED = frozenset({"numpy", "dask", "operator", "_operator", "builtins"})


def parts(func: Any) -> Iterator[Any]:
    """Yield the functions that a partial, a composition or a curried function is made of."""
    inner = getattr(func, "func", None)
    if isinstance(func, functools.partial) or (inner is not None and hasattr(func, "args")):
        yield from parts(inner)
        for value in (*func.args, *func.keywords.values()):
            if callable(value) and not isinstance(value, type):
                yield from parts(value)
    elif hasattr(func, "first") and hasattr(func, "funcs"):
        for member in (func.first, *func.funcs):
            yield from parts(member)
    else:
        yield func


def trusted(func: Any) -> bool:
    """Return whether all parts of a function come from NumPy, Dask or the standard library."""
    modules = (getattr(part, "__module__", None) or type(part).__module__ for part in parts(func))
    return all(module.partition(".")[0] in _TRUSTED for module in modules)


def _is_first_stage(layer: Layer) -> bool:
    if isinstance(layer, Blockwise):
        kwargs = layer.task.kwargs
        return "axis" in kwargs and bool(kwargs.get("keepdims"))
    task = first_task(layer)
    names = (getattr(part, "__name__", "") for part in parts(_func(task)))
    return task is not None and "arg_chunk" in names


def _is_combining_stage(layer: Layer) -> bool:
    if isinstance(layer, Blockwise):
        return False
    task = first_task(layer)
    return task is not None and keywords(_func(task)).keys() >= {"axis", "keepdims"}


def first_task(layer: Layer) -> Any:
    """Return a task of a materialized layer; None for other layers and empty ones."""
    if not isinstance(layer, MaterializedLayer):
        return None
    return next(iter(layer.mapping.values()), None)


def _func(task: Any) -> Any:
    if type(task) is tuple and task and callable(task[0]):
        return task[0]
    return getattr(task, "func", None)


def keywords(func: Any) -> dict[str, Any]:
    """Return all keyword arguments that are bound to a function or to its parts."""
    if hasattr(func, "first") and hasattr(func, "funcs"):
        merged: dict[str, Any] = {}
        for member in (func.first, *func.funcs):
            merged.update(keywords(member))
        return merged
    if isinstance(func, functools.partial):
        return {**keywords(func.func), **func.keywords}
    return {}


def skips_nan(func: Any) -> bool:
    """Return whether a stage of a reduction was given a function that skips NaN."""
    names = (getattr(value, "__name__", "") for value in keywords(func).values())
    return any(name.startswith("nan") for name in names)


def _reduced_axes(layer: Layer, ndim: int) -> frozenset[int]:
    """Return the axes along which the chunks of a stage usually have one element."""
    if isinstance(layer, Blockwise):
        axes = layer.task.kwargs["axis"]
    else:
        task = first_task(layer)
        bound = keywords(_func(task))
        if bound.get("keepdims") is False:
            return frozenset()
        if "axis" in bound:
            axes = bound["axis"]
        else:  # the first stage of an arg-reduction takes the axes as its second argument
            axes = task[2] if type(task) is tuple else task.args[1]
    return axes_of(axes, ndim)


def axes_of(axis: Any, ndim: int) -> frozenset[int]:
    """Return the axes that an argument ``axis`` names."""
    if axis is None:
        return frozenset(range(ndim))
    return frozenset(a % ndim for a in ((axis,) if isinstance(axis, int) else axis))


def reduced_chunks(chunks: _Chunks, axes: frozenset[int]) -> _Chunks:
    """Return the lengths of chunks that have one element along some axes."""
    return tuple((1,) * len(a) if i in axes else a for i, a in enumerate(chunks))


class ReductionStages:
    """Corrects ``grids``, by name of layer, where layers of a graph are stages of a reduction.

    A corrected grid is not `certain` if its stage could not be run. ``counts_once`` tells that a
    number of elements which all partial results share is stored once in all stages, as kernels do.
    """

    def __init__(
        self,
        graph: HighLevelGraph,
        grids: Mapping[str, Grid],
        dtypes: Mapping[str, np.dtype[Any]],
        *,
        counts_once: bool = False,
    ) -> None:
        self._counts_once = counts_once
        self.grids: dict[str, Grid] = {}
        self._graph = graph
        self._annotated = grids
        self._dtypes = dtypes
        self._results: dict[str, Any] = {}

    @property
    def measured(self) -> Collection[str]:
        """Names of the layers whose stages could be run, so that their results are no views."""
        return self._results.keys()

    def read(self, name: str) -> None:
        """Correct the grid of a layer; its inputs must have been read before."""
        layer = self._graph.layers[name]
        grid = self._annotated.get(name)
        first = _is_first_stage(layer)
        if grid is None or not (first or _is_combining_stage(layer)):
            return
        reduced = _reduced_axes(layer, len(grid.lengths)) if grid.lengths else frozenset()
        lengths = reduced_chunks(grid.lengths, reduced)
        self.grids[name] = Grid(lengths, grid.itemsize, certain=False)
        if not first:
            for source in self._inputs(name):
                if source not in self._results and source in self._annotated:
                    # It feeds a reduction but could not be run: its annotation may be wrong.
                    known = self.grids.get(source, self._annotated[source])
                    self.grids[source] = known.as_estimate()
        result = self._chunk(layer) if first else self._combined(name, layer)
        if result is None:
            return
        if self._counts_once and _has_counts(result) and self._shares_count(name, layer, first):
            result["n"] = np.broadcast_to(result["n"].flat[0], result["n"].shape)
        shaped = _grid_of(result, lengths, reduced)
        if shaped is not None:
            self._results[name] = result
            sources = (self.grids.get(d, self._annotated.get(d)) for d in self._inputs(name))
            sure = all(source is None or source.certain for source in sources)
            # Empty chunks may stay empty: they have no minimum.
            empty = first and any(0 in axis for axis in grid.lengths)
            self.grids[name] = shaped if sure and not empty else shaped.as_estimate()

    def _shares_count(self, name: str, layer: Layer, first: bool) -> bool:
        if first:  # NaN, if skipped, may be anywhere
            func = layer.task.func if isinstance(layer, Blockwise) else _func(first_task(layer))
            return not skips_nan(func)
        inputs = [r for d in self._inputs(name) if (r := self._results.get(d)) is not None]
        return all(_has_counts(result) and _repeated(result["n"]) for result in inputs)

    def _inputs(self, name: str) -> Collection[str]:
        return self._graph.dependencies.get(name, ())

    def _chunk(self, layer: Layer) -> Any:
        if not isinstance(layer, Blockwise):
            return self._run(first_task(layer), self._array)
        values = {}
        for position, (source, axes) in enumerate(layer.indices):
            if axes is None or not isinstance(source, str):
                return None
            values[blockwise_token(position)] = self._array(source)
        if not trusted(layer.task.func) or any(value is None for value in values.values()):
            return None
        with np.errstate(all="ignore"):
            return layer.task(values)

    def _combined(self, name: str, layer: Layer) -> Any:
        if self._results.keys().isdisjoint(self._inputs(name)):
            return None
        return self._run(first_task(layer), self._results.get)

    def _run(self, task: Any, value_of: Callable[[str], Any]) -> Any:
        layers = self._graph.layers
        node = convert_legacy_task(None, task, _KeysOf(layers))
        if not isinstance(node, GraphNode) or not trusted(_func(node)):
            return None
        values = {key: value_of(key[0]) for key in node.dependencies if isinstance(key, tuple)}
        if len(values) < len(node.dependencies) or any(v is None for v in values.values()):
            return None
        with np.errstate(all="ignore"):
            return node(values)

    def _array(self, name: str) -> np.ndarray[Any, Any] | None:
        grid, dtype = self._annotated.get(name), self._dtypes.get(name)
        if grid is None or dtype is None or len(grid.lengths) > 8:
            return None
        return np.ones(tuple(map(_probe_length, grid.lengths)), dtype)


def _probe_length(axis: tuple[int, ...]) -> int:
    """Return the probe's length along an axis; 1 for unit chunks, on which some functions rely."""
    return 1 if set(axis) == {1} else _PROBE_LENGTH


class _KeysOf:
    """The keys of all layers, recognized by their names so that no layer is materialized."""

    def __init__(self, layers: Mapping[str, Layer]) -> None:
        self._layers = layers

    def __contains__(self, key: object) -> bool:
        return type(key) is tuple and bool(key) and key[0] in self._layers


def _grid_of(
    result: Any, lengths: tuple[tuple[int, ...], ...], reduced: frozenset[int]
) -> Grid | None:
    """Return the grid of a stage, given its result for the probe; None if it is not regular."""
    if not lengths:
        return Grid((), sizeof(result))
    arrays = list(result.values()) if isinstance(result, dict) else [result]
    itemsize = 0
    overhead = sizeof(result)
    for array in arrays:
        if type(array) is not np.ndarray or array.dtype.hasobject or array.ndim < len(lengths):
            return None
        overhead -= sizeof(array)
        if _repeated(array):
            overhead += array.itemsize
            continue
        expected = [1 if i in reduced else _probe_length(axis) for i, axis in enumerate(lengths)]
        if list(array.shape[: len(lengths)]) != expected or 0 in array.strides:
            return None
        itemsize += array.itemsize * math.prod(array.shape[len(lengths) :])
    return Grid(lengths, itemsize, overhead=overhead)


def _has_counts(result: Any) -> bool:
    count = result.get("n") if isinstance(result, dict) else None
    return type(count) is np.ndarray and count.size > 0


def _repeated(array: np.ndarray[Any, Any]) -> bool:
    """Return whether an array repeats one element by strides of zero along all axes."""
    return 0 in array.strides and not any(
        step for length, step in zip(array.shape, array.strides, strict=True) if length > 1
    )
