"""Recognizes the functions in Dask's tasks that are operations or reductions of expressions."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from dask.array import chunk, reductions
from dask.array.core import _enforce_dtype
from dask.array.numpy_compat import divide
from dask.array.reductions import arg_chunk, mean_chunk, moment_chunk, nannumel, numel

from dask_marsched.kernels.expression import KINDS
from dask_marsched.kernels.operations import arity, name_of


class RecognizedOperation(NamedTuple):
    """An operation on each element; ``param`` as in `dask_marsched.kernels.expression.Node`."""

    op: str
    param: Any = None


class RecognizedReduction(NamedTuple):
    """A reduction of one array."""

    #: ``"plain"`` returns an array; ``"mean"``, ``"moment"`` and ``"arg"`` are the first stages of
    #: Dask's reductions of these names.
    form: str
    kind: str  #: Name of the reduction; ``"sum"`` for ``"mean"`` and ``"moment"``.
    skips_nan: bool  #: Whether NaN is ignored.
    counts: bool  #: Whether only elements that are not NaN are counted.
    dtype: str | None  #: Dtype of the sum or product, as text; None for NumPy's choice.
    axes: tuple[int, ...] | None  #: Reduced axes; None for all.
    keepdims: bool


_PLAIN: dict[Any, tuple[str, bool]] = {
    np.sum: ("sum", False),
    np.prod: ("prod", False),
    np.min: ("min", False),
    np.max: ("max", False),
    np.any: ("any", False),
    np.all: ("all", False),
    np.nansum: ("sum", True),
    np.nanprod: ("prod", True),
    # Dask's functions skip chunks without elements, which kernels do not evaluate anyway
    reductions.chunk_min: ("min", False),
    reductions.chunk_max: ("max", False),
}
_SUMS = {np.sum: False, np.nansum: True}
_COUNTS = {numel: False, nannumel: True}
_ARGS = {np.min: "min", np.max: "max"}
_ARG_FUNCTIONS = {chunk.argmin: "min", chunk.argmax: "max"}
_OF_SUMS = {"axis", "keepdims", "dtype"}
_OF_MOMENTS = {"sum", "numel", "dtype", "axis", "keepdims", "order", "implicit_complex_dtype"}


def unwrapped(func: Any, kwargs: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the function in nested partials, with its bound and keyword arguments."""
    bound: tuple[Any, ...] = ()
    merged = dict(kwargs)
    while type(func) is functools.partial:
        bound = func.args + bound
        merged = {**func.keywords, **merged}
        func = func.func
    return func, bound, merged


def operation(
    func: Any, arguments: int, kwargs: Mapping[str, Any]
) -> list[RecognizedOperation] | None:
    """Return the operations of a function of ``arguments`` operands, in order; None if unknown."""
    if not kwargs:
        name = name_of(func)
        if name is not None:
            return [RecognizedOperation(name)] if arity(name) == arguments else None
        return [RecognizedOperation("divide")] if func is divide and arguments == 2 else None
    if func is _enforce_dtype:
        inner = dict(kwargs)
        dtype, wrapped = inner.pop("enforce_dtype", None), inner.pop("enforce_dtype_function", None)
        found = operation(wrapped, arguments, inner)
        if found is None or dtype is None or np.dtype(dtype).kind not in KINDS:
            return None
        return [*found, RecognizedOperation("enforce", np.dtype(dtype).str)]
    if func is chunk.astype:
        if arguments != 1 or not kwargs.keys() <= {"astype_dtype", "copy", "casting"}:
            return None
        dtype = kwargs.get("astype_dtype")
        if dtype is None or kwargs.get("casting", "unsafe") != "unsafe":
            return None
        if np.dtype(dtype).kind not in KINDS:
            return None  # not all of their names can be read back
        return [RecognizedOperation("cast", np.dtype(dtype).str)]
    return None


def reduction(
    func: Any, bound: tuple[Any, ...], arguments: int, kwargs: Mapping[str, Any]
) -> RecognizedReduction | None:
    """Return the reduction of a function, a partial with ``bound`` arguments; None if unknown."""
    try:
        if func in _PLAIN and arguments == 1 and not bound:
            kind, skips_nan = _PLAIN[func]
            return _reduction("plain", kind, skips_nan, False, kwargs, _OF_SUMS)
    except TypeError:  # not hashable
        return None
    if func is mean_chunk and arguments == 1 and not bound:
        return _of_moments("mean", kwargs)
    if func is moment_chunk and arguments == 1 and not bound:
        simple = kwargs.get("order", 2) == 2 and not kwargs.get("implicit_complex_dtype", False)
        return _of_moments("moment", kwargs) if simple else None
    if func is arg_chunk and len(bound) == 2 and arguments == 3 and not kwargs:
        sought = _ARGS.get(bound[0])
        if sought is not None and _ARG_FUNCTIONS.get(bound[1]) == sought:
            return RecognizedReduction("arg", sought, False, False, None, None, True)
    return None


def _of_moments(form: str, kwargs: Mapping[str, Any]) -> RecognizedReduction | None:
    summed, counted = kwargs.get("sum", chunk.sum), kwargs.get("numel", numel)
    if summed not in _SUMS or counted not in _COUNTS:
        return None
    return _reduction(
        form, "sum", _SUMS[summed], _COUNTS[counted], {"dtype": "f8", **kwargs}, _OF_MOMENTS
    )


def _reduction(
    form: str,
    kind: str,
    skips_nan: bool,
    counts: bool,
    kwargs: Mapping[str, Any],
    known: set[str],
) -> RecognizedReduction | None:
    if not kwargs.keys() <= known:
        return None
    axis, keepdims, named = (kwargs.get(name) for name in ("axis", "keepdims", "dtype"))
    dtype = None if named is None else np.dtype(named).str
    if dtype is not None and kind not in ("sum", "prod"):
        return None
    axes = (axis,) if isinstance(axis, int) else axis
    plain = type(axes) is tuple and all(type(a) is int and a >= 0 for a in axes)
    if axes is not None and not plain:
        return None
    return RecognizedReduction(form, kind, skips_nan, counts, dtype, axes, bool(keepdims))
