"""Combines the partial results of flox's groupby reductions, some rows at a time.

flox copies the partial results of all chunks into one array, and reduces that along an axis. Here
flox's own functions get a few rows of each partial result at a time, so that only the result and a
small copy take memory. A row is an index of the first axis, which none of these functions mixes
with another; that this changes no bit is checked on random numbers before the first use.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from dask._task_spec import GraphNode, Task

from dask_marsched.host.kernels.partial_results import UnfitError, flat, nesting, raising
from dask_marsched.host.kernels.rules import unwrapped

#: Bytes copied at a time.
_PIECE = 1 << 20
#: Fewer bytes in all partial results are left to flox.
_LEAST = 4 * _PIECE
_FUNCTIONS = (np.sum, np.prod, np.min, np.max, np.nanmin, np.nanmax, np.any, np.all)
#: Rows to compare with flox, and the number of them at a time.
_TRIED, _TRIED_AT_ONCE = 5, 2


class GroupedCombination(NamedTuple):
    """A stage of a groupby reduction that combines partial results."""

    axis: tuple[int, ...]
    functions: tuple[str, ...]  #: that reduce the intermediate arrays, one each
    is_last: bool


def combination(node: Any) -> GroupedCombination | None:
    """Return what a task combines; None if it is not of a known form."""
    flox = sys.modules.get("flox.dask")
    if flox is None or type(node) is not Task or type(node.func) is not partial:
        return None
    if node.kwargs or len(node.args) != 1 or not isinstance(node.args[0], GraphNode):
        return None
    func, bound, kwargs = unwrapped(node.func, {})
    is_last = func is getattr(flox, "_aggregate", None)
    if is_last:
        func, bound, _ = unwrapped(kwargs.get("combine"), {})
    functions = getattr(kwargs.get("agg"), "simple_combine", None)
    axis = kwargs.get("axis")
    if bound or func is not getattr(flox, "_simple_combine", None) or type(axis) is not tuple:
        return None
    if type(functions) is not tuple or not all(map(_is_known, functions)):
        return None
    return GroupedCombination(axis, tuple(f.__name__ for f in functions), is_last)


def _is_known(function: Any) -> bool:
    return any(function is known for known in _FUNCTIONS)  # it may not be hashable


def combine(node: Any, found: GroupedCombination, values: Mapping[Any, Any]) -> Any:
    """Return the result of a task that combines results, given its inputs by key.

    Raises UnfitError if flox has to combine them, and FloatingPointError if NumPy would warn.
    """
    arg = node.args[0]
    nested = arg({key: values[key] for key in arg.dependencies})
    first, row = _checked(nested, found)
    form = (
        *(found, nesting(nested), repr(node.func.keywords.get("reindex"))),
        *((a.dtype, a.ndim, np.argsort(a.strides, kind="stable").tobytes()) for a in first),
        *(tuple(n > 1 for n in a.shape) for a in first),
    )
    with raising():
        if not _agrees(form, node.func, nested, found):
            raise UnfitError
        return _by_rows(node.func, found, max(_TRIED_AT_ONCE, _PIECE // row))(nested)


def _checked(nested: Any, found: GroupedCombination) -> tuple[tuple[Any, ...], int]:
    """Return the arrays of the first part, and the bytes that a row of all parts has at most."""
    parts = list(flat(nested))
    if any(type(part) is not dict or "intermediates" not in part for part in parts):
        raise UnfitError
    rows = [tuple(part["intermediates"]) for part in parts]
    arrays = [array for row in rows for array in row]
    if not all(map(_is_plain, arrays)):
        raise UnfitError
    count = arrays[0].shape[0] if arrays else 0
    if count < _TRIED or any(array.shape[0] != count for array in arrays):
        raise UnfitError
    nbytes = [sum(array.nbytes for array in same) for same in zip(*rows, strict=True)]
    if 0 in found.axis or sum(nbytes) < _LEAST or len(nbytes) != len(found.functions):
        raise UnfitError
    return rows[0], max(nbytes) // count


def _is_plain(array: Any) -> bool:
    return type(array) is np.ndarray and array.ndim > 2 and array.dtype.kind in "biufc"


_proven: dict[Any, bool] = {}
_proving = threading.Lock()


def _agrees(form: Any, whole: Any, nested: Any, found: GroupedCombination) -> bool:
    """Return whether results are flox's to the last bit, tried once on random numbers."""
    with _proving:
        if form not in _proven:
            small = _mapped(nested, _Drawn())
            with np.errstate(all="ignore"):
                ours = _by_rows(whole, found, _TRIED_AT_ONCE)(small)
                _proven[form] = _same(ours, whole(small))
        return _proven[form]


class _Drawn:
    """Replaces arrays by a few rows of random numbers, with their layout in memory."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)

    def __call__(self, array: Any) -> Any:
        drawn = np.empty_like(array, shape=(_TRIED, *array.shape[1:]))
        sizes = 10.0 ** self._random.integers(-3, 4, drawn.shape)
        drawn[...] = self._random.choice([-1.0, 1.0, 0.0], drawn.shape) * sizes
        return drawn


def _mapped(nested: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(nested, list):
        return [_mapped(inner, change) for inner in nested]
    return {**nested, "intermediates": tuple(map(change, nested["intermediates"]))}


def _by_rows(whole: Any, found: GroupedCombination, at_once: int) -> Callable[[Any], Any]:
    """Return a stage that combines so many rows at a time."""
    if not found.is_last:
        return partial(_combined, whole, at_once)
    # The last stage then computes with all rows: what it does depends on all counts.
    return partial(whole, combine=partial(_combined, whole.keywords["combine"], at_once))


def _combined(whole: Any, at_once: int, nested: Any, *args: Any, **kwargs: Any) -> Any:
    """Combine as flox's `_simple_combine`, called with some rows at a time."""
    count = next(flat(nested))["intermediates"][0].shape[0]
    results: list[Any] = []
    for rows in _slices(count, at_once):
        piece = whole(_mapped(nested, itemgetter(rows)), *args, **kwargs)
        arrays = piece["intermediates"]
        if any(array.shape[:1] != (rows.stop - rows.start,) for array in arrays):
            raise UnfitError
        results = results or [np.empty_like(a, shape=(count, *a.shape[1:])) for a in arrays]
        for result, array in zip(results, arrays, strict=True):
            result[rows] = array
    return {**piece, "intermediates": results}


def _slices(count: int, at_once: int) -> Iterator[slice]:
    """Divide so many rows; no piece has one row, as NumPy adds along another axis then."""
    for start in range(0, count - 1, at_once):
        stop = start + at_once
        yield slice(start, count if stop >= count - 1 else stop)
        if stop >= count - 1:
            return


def _same(ours: Any, floxes: Any) -> bool:
    if isinstance(floxes, dict):
        return list(ours) == list(floxes) and all(_same(ours[k], floxes[k]) for k in floxes)
    if isinstance(floxes, list):
        return len(ours) == len(floxes) and all(map(_same, ours, floxes))
    if type(floxes) is not np.ndarray:
        return type(ours) is type(floxes) and bool(np.all(ours == floxes))
    return (
        type(ours) is np.ndarray
        and (ours.dtype, ours.shape, ours.strides) == (floxes.dtype, floxes.shape, floxes.strides)
        and ours.tobytes() == floxes.tobytes()
    )
