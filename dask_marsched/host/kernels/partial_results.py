"""Combines the partial results of tree reductions without concatenating them first.

Dask copies the partial results of a sum, mean or variance into one array, and computes with several
temporary arrays of that size. Here a piece of each is read at a time, so that only the result takes
memory. Sums are added in NumPy's order; each form is compared with Dask's function before its
first use.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from dask._task_spec import GraphNode, Task
from dask.array.core import _concatenate2
from dask.array.reductions import mean_agg, mean_combine, moment_agg, moment_combine
from tlz.functoolz import Compose  # type: ignore[import-untyped]  # it has no types

from dask_marsched.host.kernels.rules import unwrapped

#: Elements computed at a time: they stay in the processor's cache.
_PIECE = 16384
#: Smaller results are left to Dask, elements.
_LEAST = 2 * _PIECE
_FORMS: dict[Any, tuple[str, frozenset[str]]] = {
    mean_combine: ("mean", frozenset({"axis", "keepdims", "dtype", "sum", "numel"})),
    mean_agg: ("mean_end", frozenset({"axis", "keepdims", "dtype"})),
    moment_combine: ("moment", frozenset({"axis", "keepdims", "dtype", "sum", "order", "ddof"})),
    moment_agg: ("moment_end", frozenset({"axis", "keepdims", "dtype", "sum", "order", "ddof"})),
    np.sum: ("sum", frozenset({"axis", "keepdims", "dtype"})),
}
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
    plain = (
        not bound
        and kwargs.keys() <= known
        and kwargs.get("order", 2) == 2
        and type(ddof) in (int, float)
        and (not form.startswith("moment") or kwargs.get("sum", np.sum) is np.sum)
        and type(axes) is tuple
        and list(axes) == sorted({a for a in axes if type(a) is int and a >= 0})
    )
    if not plain or not axes:
        return None
    text = None if dtype is None else np.dtype(dtype).str
    keepdims = form in ("mean", "moment") or bool(kwargs.get("keepdims", False))
    return Combination(form, axes, keepdims, text, ddof)


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
        return partials.combined()


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
        parts = list(flat(nested))
        keys = None
        if found.form != "sum":
            keys = ["n", "total"] if found.form.startswith("mean") else ["total", "n", "M"]
        if any(keys != (list(part) if type(part) is dict else None) for part in parts):
            raise UnfitError
        self._take(parts)
        first = self.totals[0]
        if type(first) is not np.ndarray or first.size < _LEAST:
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
        if found.dtype is not None and found.dtype != dtype.str and found.form != "mean":
            raise UnfitError
        for arrays, wanted in ((self.totals, shape), (self.squares, (*shape, 1))):
            if not all(map(partial(_is_plain, shape=wanted, dtype=dtype), arrays)):
                raise UnfitError
        if self.counts:
            numbers = {count.dtype if type(count) is np.ndarray else None for count in self.counts}
            of_type = np.dtype("i8") if self.squares else dtype
            if numbers != {of_type} or (self.squares and dtype != np.dtype("f8")):
                raise UnfitError
            self.numbers = [_number(count, shape) for count in self.counts]
            self.number = of_type.type(sum(n.item() for n in self.numbers))
            if not 0 < min(self.numbers) <= self.number < _MOST_COUNTED.get(of_type, 0):
                raise UnfitError

    def form(self, nested: Any) -> Any:
        """Return what decides about the order of operations."""
        long = tuple(length > 1 for length in self.shape)
        return self.found, self.dtype, nesting(nested), len(self.totals), long

    def agrees(self, dasks: Callable[[Any], Any], nested: Any) -> bool:
        """Return whether results are Dask's to the last bit, on random numbers."""
        random = np.random.default_rng(0)
        shape = tuple(min(length, 7) for length in self.shape)

        def drawn(value: Any) -> Any:
            if isinstance(value, list):
                return [drawn(inner) for inner in value]
            if isinstance(value, dict):
                return {key: drawn(inner) for key, inner in value.items()}
            if value.size >= _LEAST and _is_repeated(value):
                return np.broadcast_to(value[(slice(0, 1),) * value.ndim], shape)
            sizes = 10.0 ** random.integers(-3, 4, (*shape, *value.shape[len(shape) :]))
            return (random.choice([-1.0, 1.0, -0.0], sizes.shape) * sizes).astype(value.dtype)

        small = drawn(nested)
        ours = copy.copy(self)
        ours.shape = shape
        ours._take(list(flat(small)))
        with np.errstate(all="ignore"):
            return same(ours.combined(), dasks(small))

    def combined(self) -> Any:
        """Return the result."""
        form = self.found.form
        total, squares = (
            np.empty(self.shape, self.dtype) if wanted else None
            for wanted in (form != "moment_end", bool(self.squares))
        )
        scratch = np.empty((3, _PIECE), self.dtype)
        flat = [[a.reshape(-1) for a in arrays] for arrays in (self.totals, self.squares)]
        outs = [None if out is None else out.reshape(-1) for out in (total, squares)]
        for start in range(0, self.totals[0].size, _PIECE):
            here = slice(start, start + _PIECE)
            totals, more = ([array[here] for array in arrays] for arrays in flat)
            sums, work, terms = scratch[:, : totals[0].size]
            into = sums if outs[0] is None else outs[0][here]
            _add(totals, into)
            if outs[1] is not None:
                self._add_squares(into, totals, more, outs[1][here], work, terms)
            if form == "mean_end":
                np.divide(into, self.number, into)
        return self._result(total, squares)

    def _add_squares(
        self, total: Any, totals: list[Any], squares: list[Any], into: Any, work: Any, terms: Any
    ) -> None:
        """Add the squared deviations from the common mean, as Dask's `_moment_helper`."""
        _add(squares, into)
        terms.fill(0)
        mean = total / self.number
        for part, number in zip(totals, self.numbers, strict=True):
            np.divide(part, number, work)
            np.subtract(work, mean, work)
            np.square(work, work)
            np.multiply(work, number, work)
            np.add(terms, work, terms)
        np.add(into, terms, into)
        if self.found.form == "moment_end":
            least = self.dtype.type(self.number) - self.found.ddof
            np.divide(into, least if least >= 0 else np.nan, into)

    def _result(self, total: Any, squares: Any) -> Any:
        found = self.found
        if found.form in ("mean", "moment"):
            count = np.broadcast_to(np.array(self.number), self.shape)
            if found.form == "mean":
                return {"n": count, "total": total}
            return {"total": total, "n": count, "M": squares[..., None]}
        result = total if squares is None else squares
        if found.keepdims:
            return result
        return result.reshape([n for a, n in enumerate(self.shape) if a not in found.axes])


def raising() -> np.errstate:
    """Raise a FloatingPointError where NumPy would warn."""
    warned = {kind: "raise" for kind, how in np.geterr().items() if how != "ignore"}
    return np.errstate(**warned)  # type: ignore[arg-type]  # the values are known


def _add(parts: Sequence[Any], into: Any) -> None:
    if len(parts) == 1:
        np.add(parts[0], 0, into)
        return
    np.add(parts[0], parts[1], into)
    for part in parts[2:]:
        np.add(into, part, into)
    np.add(into, 0, into)  # NumPy begins with zero: no sum is -0.0


def flat(nested: Any) -> Iterator[Any]:
    """Yield the elements of nested lists."""
    if isinstance(nested, list):
        for inner in nested:
            yield from flat(inner)
    else:
        yield nested


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


def _number(count: Any, shape: tuple[int, ...]) -> Any:
    """Return the only element that an array repeats."""
    if count.shape != shape or not _is_repeated(count):
        raise UnfitError
    return count[(0,) * count.ndim]


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
