"""Combines the partial results of flox's groupby reductions, some rows at a time.

flox copies the partial results of all chunks into one array, and reduces that along an axis. Here
flox's own functions get a few rows of each partial result at a time, so that only the result and a
small copy take memory. A row is an index of the first axis, which none of these functions mixes
with another; that this changes no bit is checked on random numbers before the first use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from dask._task_spec import GraphNode, Task
from dask.core import flatten

from dask_marsched.host.kernels.partial_results import (
    UnfitError,
    draw,
    nesting,
    proven,
    raising,
    same,
)
from dask_marsched.host.kernels.rules import unwrapped

#: Bytes copied at a time.
_PIECE = 1 << 20
#: Fewer bytes in all partial results are left to flox.
_LEAST_NBYTES = 4 * _PIECE
_FUNCTIONS = (np.sum, np.prod, np.min, np.max, np.nanmin, np.nanmax, np.any, np.all)
#: Rows to compare with flox, and the number of them at a time.
_TRIED, _TRIED_AT_ONCE = 5, 2
#: Of other axes, as many indices are compared at most; of groups, all.
_TRIED_LENGTH = 7
#: If there are fewer rows, they have to be small.
_FEW_ROWS = 16


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


def combine(node: Any, found: GroupedCombination, values: Mapping[Any, Any]) -> Callable[[], Any]:
    """Return what finishes a task that combines results, given its inputs by key.

    Raises UnfitError if flox has to combine them, and FloatingPointError if NumPy would warn.
    What is returned calls the user's functions, if any: its errors are the task's.
    """
    arg = node.args[0]
    nested = arg({key: values[key] for key in arg.dependencies})
    _, _, kwargs = unwrapped(node.func, {})
    parts = list(flatten([nested]))
    arrays, row = _checked(parts, found)
    stage = node.func
    if found.is_last:
        stage = _before_finalize(kwargs)
        _, _, kwargs = unwrapped(kwargs["combine"], {})
    reindex: Any = kwargs.get("reindex")
    if not reindex.blockwise and not _are_sorted([part["groups"] for part in parts]):
        raise UnfitError
    form = found, nesting(nested), repr(reindex), tuple(map(_layout, arrays))
    if not proven(form, lambda: _proved(stage, nested)):
        raise UnfitError
    combined = _combined(stage, max(_TRIED_AT_ONCE, _PIECE // row), nested)
    if found.is_last:
        return partial(node.func, nested, combine=lambda *args, **kwargs: combined)
    return lambda: combined


def _before_finalize(kwargs: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return what `_aggregate` does before it calls the user's `finalize`."""
    inner, *args = (kwargs[name] for name in ("combine", "agg", "axis", "keepdims"))
    return lambda nested: inner(nested, *args, is_aggregate=True)


def _checked(parts: list[Any], found: GroupedCombination) -> tuple[list[Any], int]:
    """Return the arrays of all parts, and the bytes that a row of all parts has at most."""
    if any(type(part) is not dict or "intermediates" not in part for part in parts):
        raise UnfitError
    rows = [tuple(part["intermediates"]) for part in parts]
    arrays = [array for row in rows for array in row]
    if not all(map(_is_plain, arrays)) or len({array.shape[:-1] for array in arrays}) != 1:
        raise UnfitError
    # NumPy's concatenate never moves a reduced axis of length 1 outside of axis 0, so that NumPy
    # adds in the same order whatever the number of rows.
    shape = arrays[0].shape
    if any(axis not in range(1, len(shape)) or shape[axis] != 1 for axis in found.axis[:-1]):
        raise UnfitError
    nbytes = [sum(array.nbytes for array in same) for same in zip(*rows, strict=True)]
    if shape[0] < _TRIED or sum(nbytes) < _LEAST_NBYTES or len(nbytes) != len(found.functions):
        raise UnfitError
    row = max(nbytes) // shape[0]
    if shape[0] < _FEW_ROWS and row > _PIECE:  # a piece would be a large share of the whole
        raise UnfitError
    return arrays, row


def _is_plain(array: Any) -> bool:
    """Whether concatenate and reductions go through an array row by row.

    If they went along rows, signs of zeros and NaNs would depend on the number of rows.
    """
    return (
        type(array) is np.ndarray
        and array.ndim > 2
        and array.shape[-2] == 1  # flox's dummy axis, reduced as well
        and array.dtype.kind in "biufc"
        and array.flags.c_contiguous
        and array.strides[0] == max(array.strides)
    )


def _are_sorted(groups: list[Any]) -> bool:
    """Whether flox need not reindex any part: that moves groups outside of axis 0 in memory."""
    first = groups[0]
    return all(np.array_equal(g, first) for g in groups) and bool(
        np.all(first[..., :-1] < first[..., 1:])
    )


def _layout(array: Any) -> Any:
    order = np.argsort(array.strides, kind="stable").tobytes()
    return array.dtype, tuple(n > 1 for n in array.shape), order


def _proved(stage: Callable[[Any], Any], nested: Any) -> bool:
    """Return whether results are flox's to the last bit, on random numbers."""
    try:
        with np.errstate(all="ignore"):
            small = _mapped(nested, partial(_drawn, np.random.default_rng(0)))
            ours, floxes = _combined(stage, _TRIED_AT_ONCE, small), stage(small)
            return same(ours, floxes) and _strides(ours) == _strides(floxes)
    except Exception:  # whatever is wrong with it, flox combines the task's own data
        return False


def _strides(result: Any) -> list[Any]:
    return [array.strides for array in result["intermediates"]]


def _drawn(random: np.random.Generator, array: Any) -> Any:
    """Return a few rows of random numbers in place of an array, with its layout in memory."""
    between = (min(length, _TRIED_LENGTH) for length in array.shape[1:-1])
    drawn = np.empty_like(array, shape=(_TRIED, *between, array.shape[-1]))
    drawn[...] = draw(random, drawn.shape, drawn.dtype)
    return drawn


def _mapped(nested: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(nested, list):
        return [_mapped(inner, change) for inner in nested]
    return {**nested, "intermediates": tuple(map(change, nested["intermediates"]))}


def _combined(stage: Callable[[Any], Any], at_once: int, nested: Any) -> Any:
    """Combine as a stage of flox does, with some rows at a time."""
    count = next(flatten([nested]))["intermediates"][0].shape[0]
    results: list[Any] = []
    for rows in _slices(count, at_once):
        with raising():
            piece = stage(_mapped(nested, itemgetter(rows)))
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
