"""Combines the partial results of tree reductions without concatenating them first.

Dask copies the partial results of a sum, mean or variance into one array, and computes with several
temporary arrays of that size. Here a piece of each is read at a time, so that only the result takes
memory. Sums are added in NumPy's order; each form is compared with Dask's function before its
first use.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from dask._task_spec import GraphNode, Task
from dask.array.core import _concatenate2
from dask.array.reductions import mean_agg, mean_combine, moment_agg, moment_combine
from dask.core import flatten
from tlz.functoolz import Compose  # type: ignore[import-untyped]  # it has no types

from dask_marsched.host.kernels.piecewise_sums import (
    DOUBLE,
    PIECE,
    SquaredDeviations,
    add_parts,
    quiet,
    warn_again,
)
from dask_marsched.host.kernels.rules import unwrapped

#: Smaller results are left to Dask, elements.
_LEAST_ELEMENTS = 2 * PIECE
_FORMS: dict[Any, tuple[str, frozenset[str]]] = {
    mean_combine: ("mean", frozenset({"axis", "keepdims", "dtype", "sum", "numel"})),
    mean_agg: ("mean_end", frozenset({"axis", "keepdims", "dtype"})),
    moment_combine: ("moment", frozenset({"axis", "keepdims", "dtype", "sum", "order", "ddof"})),
    moment_agg: ("moment_end", frozenset({"axis", "keepdims", "dtype", "sum", "order", "ddof"})),
    np.sum: ("sum", frozenset({"axis", "keepdims", "dtype"})),
}
#: About so many random numbers of each array are combined to see whether results are Dask's.
_TRIED = 4096
_SUMMED = tuple(map(np.dtype, ("f4", "f8", "c8", "c16", "i8")))
#: Types of counts, and the numbers up to which they, or their conversions, are exact.
_MOST_COUNTED = {np.dtype("f4"): 2**24, np.dtype("f8"): 2**53, np.dtype("i8"): 2**53}


class Combination(NamedTuple):
    """A stage of a tree reduction that combines partial results."""

    form: str  #: ``"sum"``, ``"mean"`` or ``"moment"``; with ``"_end"`` for the last stage.
    axes: tuple[int, ...]
    keepdims: bool
    dtype: str | None  #: of the result, as text
    ddof: float
    skips_nan: bool = False  #: Whether squared deviations are added without those that are NaN.


def combination(node: Any) -> Combination | None:
    """Return what a task combines; None if its function or arguments are not of a known form."""
    if type(node) is not Task or node.kwargs or len(node.args) != 1:
        return None
    if not isinstance(node.args[0], GraphNode):  # a list, possibly nested
        return None
    func: Any = node.func
    if type(func) is not Compose:
        found = _combination(func)
        return found if found and found.form != "sum" else None
    first, functions = func.first, func.funcs
    if getattr(first, "func", None) is not _concatenate2 or len(functions) != 1:
        return None
    found = _combination(functions[0])
    axes = tuple(first.keywords.get("axes") or ())
    return found if found and found.form == "sum" and axes == found.axes else None


def _combination(func: Any) -> Combination | None:
    if type(func) is not partial:
        return None
    func, bound, kwargs = unwrapped(func, {})
    try:
        form, known = _FORMS[func]
    except (KeyError, TypeError):  # unknown, or not hashable
        return None
    axes, ddof = kwargs.get("axis"), kwargs.get("ddof", 0)
    dtype = kwargs.get("dtype", None if form in ("sum", "mean") else "f8")
    adds = kwargs.get("sum", np.sum) if form.startswith("moment") else np.sum
    plain = (
        not bound
        and kwargs.keys() <= known
        and kwargs.get("order", 2) == 2
        and type(ddof) in (int, float)
        and adds in (np.sum, np.nansum)
        and type(axes) is tuple
        and list(axes) == sorted({a for a in axes if type(a) is int and a >= 0})
    )
    if not plain or not axes:
        return None
    text = None if dtype is None else np.dtype(dtype).str
    keepdims = form in ("mean", "moment") or bool(kwargs.get("keepdims", False))
    return Combination(form, axes, keepdims, text, ddof, adds is np.nansum)


class UnfitError(Exception):
    """The partial results have to be combined by Dask."""


def combine(node: Any, found: Combination, values: Mapping[Any, Any]) -> Any:
    """Return the result of a task that combines results, given its inputs by key.

    Raises UnfitError if Dask has to combine them, and FloatingPointError if NumPy would warn.
    """
    arg = node.args[0]
    nested = arg({key: values[key] for key in arg.dependencies})
    partials = _Partials(found, nested)
    if not proven(partials.form(nested), lambda: partials.agrees(node.func, nested)):
        raise UnfitError
    with raising():
        result = partials.combined()
    for errors in partials.errors:
        warn_again(errors)
    return result


#: Whether our results are the tasks' own, by form.
_proven: dict[Any, bool] = {}
_proving = threading.Lock()


def proven(form: Any, prove: Callable[[], bool]) -> bool:
    """Return whether results of a form are the tasks' own to the last bit, tried once."""
    if form not in _proven:
        with _proving:
            if form not in _proven:  # nor tried in another thread in the meantime
                _proven[form] = prove()
    return _proven[form]


class _Partials:
    """Partial results to combine; raises `UnfitError` if they are not of a known form."""

    def __init__(self, found: Combination, nested: Any) -> None:
        self.found = found
        parts = list(flatten([nested]))
        keys = None
        if found.form != "sum":
            keys = ["n", "total"] if found.form.startswith("mean") else ["total", "n", "M"]
        if any(keys != (list(part) if type(part) is dict else None) for part in parts):
            raise UnfitError
        self._take(parts)
        #: After `combined`, the errors that Dask's two divisions would warn of, for `warn_again`.
        self.errors: tuple[set[str], ...] = ()
        #: Whether the numbers of elements differ within a partial result, or some are 0.
        self.varies = False
        first = self.totals[0]
        if type(first) is not np.ndarray or first.size < _LEAST_ELEMENTS:
            raise UnfitError
        self.shape, self.dtype = first.shape, first.dtype
        self._check()

    def _take(self, parts: list[Any]) -> None:
        if self.found.form == "sum":
            self.totals, self.squares, self.counts = parts, [], []
            return
        self.totals = [part["total"] for part in parts]
        self.counts = [part["n"] for part in parts]
        self.squares = [part["M"] for part in parts if "M" in part]

    def _check(self) -> None:
        shape, dtype, found = self.shape, self.dtype, self.found
        if dtype not in _SUMMED or found.axes[-1] >= len(shape):
            raise UnfitError
        if any(shape[axis] != 1 for axis in found.axes):
            raise UnfitError
        if found.form == "mean_end" and dtype.kind not in "fc":
            raise UnfitError
        fitting = (None, dtype.str, DOUBLE.str if found.form == "moment" else None)
        if found.dtype not in fitting and found.form != "mean":
            raise UnfitError
        if self.squares and (dtype.kind != "f" or self._squares_type() not in (dtype, DOUBLE)):
            raise UnfitError
        for arrays, wanted, of_type in (
            (self.totals, shape, dtype),
            (self.squares, (*shape, 1), self._squares_type()),
        ):
            if not all(map(partial(_is_plain, shape=wanted, dtype=of_type), arrays)):
                raise UnfitError
        if self.counts:
            self._check_counts()

    def _check_counts(self) -> None:
        of_type = np.dtype("i8") if self.squares else self.dtype
        if not all(_is_counted(count, self.shape, of_type) for count in self.counts):
            raise UnfitError
        numbers = [count[(0,) * count.ndim] for count in self.counts if _is_repeated(count)]
        if len(numbers) < len(self.counts) or not min(numbers) > 0:
            self.varies = True
        elif of_type not in _MOST_COUNTED or sum(map(int, numbers)) >= _MOST_COUNTED[of_type]:
            raise UnfitError

    def form(self, nested: Any) -> Any:
        """Return what decides about the order of operations."""
        long = tuple(length > 1 for length in self.shape)
        return self.found, self.dtype, nesting(nested), len(self.totals), long, self.varies

    def agrees(self, dasks: Callable[[Any], Any], nested: Any) -> bool:
        """Return whether results are Dask's to the last bit, on random numbers."""
        random = np.random.default_rng(0)
        most = max(7, int(_TRIED ** (1 / len(self.shape))))
        shape = tuple(min(length, most) for length in self.shape)

        def drawn(value: Any) -> Any:
            if isinstance(value, list):
                return [drawn(inner) for inner in value]
            if isinstance(value, dict):
                return drawn_together(value)
            if value.size >= _LEAST_ELEMENTS and _is_repeated(value):
                return np.broadcast_to(value[(slice(0, 1),) * value.ndim], shape)
            return draw(random, (*shape, *value.shape[len(shape) :]), value.dtype)

        def drawn_together(value: dict[str, Any]) -> dict[str, Any]:
            found = {key: drawn(inner) for key, inner in value.items()}
            if self.varies:
                found["n"] = random.integers(0, 3, shape).astype(value["n"].dtype)
                for array in (found["total"], found.get("M")):
                    if array is not None:
                        array[found["n"] == 0] = 0
            return found

        small = drawn(nested)
        ours = copy.copy(self)
        ours.shape = shape
        ours._take(list(flatten([small])))
        with np.errstate(all="ignore"):
            return same(ours.combined(), dasks(small))

    def combined(self) -> Any:
        """Return the result."""
        form, ends = self.found.form, self.found.form.endswith("_end")
        types = {
            "total": self.dtype if form != "moment_end" else None,
            "squares": (self.dtype if ends else DOUBLE) if self.squares else None,
            "count": self._count_type() if self.varies and not ends else None,
        }
        made = {name: np.empty(self.shape, kind) for name, kind in types.items() if kind}
        outs = {name: array.reshape(-1) for name, array in made.items()}
        arrays = [[a.reshape(-1) for a in group] for group in (self.totals, self.squares)]
        numbers = [_flat_or_number(count) for count in self.counts]
        sums = np.empty(PIECE, self.dtype)
        counted = np.empty(PIECE if self.varies else 1, self._count_type())
        deviations = self._deviations() if self.squares else None
        self.errors = () if deviations is None else deviations.errors
        for start in range(0, self.totals[0].size, PIECE):
            here = slice(start, start + PIECE)
            totals, squares = ([array[here] for array in group] for group in arrays)
            counts = [n[here] if type(n) is np.ndarray else n for n in numbers]
            total = outs["total"][here] if "total" in outs else sums[: totals[0].size]
            number = outs["count"][here] if "count" in outs else counted[: totals[0].size]
            add_parts(totals, total)
            if counts:
                add_parts(counts, number)
            if deviations is not None:
                deviations.add(total, totals, squares, number, counts, outs["squares"][here])
            elif form == "mean_end":
                with quiet():
                    np.divide(total, number, total)
        return self._result(made, counted[0])

    def _deviations(self) -> SquaredDeviations:
        found = self.found
        return SquaredDeviations(
            np.dtype(found.dtype),
            self.dtype,
            self._squares_type(),
            ends=found.form == "moment_end",
            ddof=found.ddof,
            skips_nan=found.skips_nan,
        )

    def _count_type(self) -> np.dtype[Any]:
        found: np.dtype[Any] = self.counts[0].dtype if self.counts else self.dtype
        return found

    def _squares_type(self) -> np.dtype[Any]:
        found: np.dtype[Any] = self.squares[0].dtype if self.squares else self.dtype
        return found

    def _result(self, made: Mapping[str, Any], number: Any) -> Any:
        found = self.found
        if found.form in ("mean", "moment"):
            count = made.get("count")
            if count is None:
                count = np.broadcast_to(np.array(number), self.shape)
            if found.form == "mean":
                return {"n": count, "total": made["total"]}
            return {"total": made["total"], "n": count, "M": made["squares"][..., None]}
        result = made["squares"] if self.squares else made["total"]
        if found.keepdims:
            return result
        return result.reshape([n for a, n in enumerate(self.shape) if a not in found.axes])


def draw(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Return random numbers whose sums in different orders differ in their last bits."""
    drawn = random.normal(size=shape) * 10.0 ** random.integers(-3, 4, shape)
    drawn[random.random(shape) < 0.1] = -0.0
    if dtype.kind == "c":
        return (drawn + 1j * random.permutation(drawn.ravel()).reshape(shape)).astype(dtype)
    return drawn.astype(dtype)


def raising() -> np.errstate:
    """Raise a FloatingPointError where NumPy would warn."""
    warned = {kind: "raise" for kind, how in np.geterr().items() if how != "ignore"}
    return np.errstate(**warned)  # type: ignore[arg-type]  # the values are known


def nesting(nested: Any) -> Any:
    """Return tuples nested as some lists are, with None for their elements."""
    return tuple(map(nesting, nested)) if isinstance(nested, list) else None


def _is_plain(array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    return (
        type(array) is np.ndarray
        and array.shape == shape
        and array.dtype == dtype
        and array.flags.c_contiguous
        and array.flags.aligned
    )


def _is_counted(count: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether an array of counts can be read piece by piece, or repeats one number."""
    if _is_plain(count, shape, dtype):
        return True
    is_array = type(count) is np.ndarray and count.shape == shape and count.dtype == dtype
    return is_array and _is_repeated(count)


def _flat_or_number(count: Any) -> Any:
    return count[(0,) * count.ndim] if _is_repeated(count) else count.reshape(-1)


def _is_repeated(array: Any) -> bool:
    return not any(s for n, s in zip(array.shape, array.strides, strict=True) if n > 1)


def same(ours: Any, theirs: Any) -> bool:
    """Return whether results are the same to the last bit; their layout in memory may differ."""
    if isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(same(ours[k], theirs[k]) for k in theirs)
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if type(ours) is not type(theirs):
        return False
    if not isinstance(theirs, np.ndarray | np.generic):
        return bool(np.all(ours == theirs))
    is_like = ours.dtype == theirs.dtype and ours.shape == theirs.shape
    return bool(is_like and ours.tobytes() == theirs.tobytes())
