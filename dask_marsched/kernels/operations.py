"""Lists the operations that expressions may contain: NumPy's ufuncs, a few more, and reductions.

To add one, enter it in its table here; what is no ufunc also in `name_of` and `arity`. NumPy
evaluates it then; code of our own for it, which is optional, stands in `llvm.operations`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

_UFUNCS = """
    absolute add arccos arccosh arcsin arcsinh arctan arctan2 arctanh bitwise_and bitwise_or
    bitwise_xor cbrt ceil conjugate copysign cos cosh deg2rad degrees divide equal exp exp2 expm1
    fabs float_power floor floor_divide fmod greater greater_equal heaviside hypot invert
    isfinite isinf isnan left_shift less less_equal log log10 log1p log2 logaddexp logaddexp2
    logical_and logical_not logical_or logical_xor maximum minimum multiply negative nextafter
    not_equal positive power rad2deg radians reciprocal remainder right_shift rint sign signbit sin
    sinh sqrt square subtract tan tanh trunc
"""
#: The supported ufuncs, by name. Whether fmax and fmin choose 0.0 or -0.0 depends on the place.
UFUNCS: dict[str, np.ufunc] = {name: getattr(np, name) for name in _UFUNCS.split()}

RAISING = frozenset({"power"})  #: Ufuncs whose inner loops for integers may raise an exception

#: Operations that NumPy computes in another way if the exponent is a scalar.
POWERS = frozenset({"pow", "power", "float_power"})

#: Operations by Python's operators.
OPERATORS: dict[Callable[..., Any], str] = {
    operator.abs: "absolute",
    operator.add: "add",
    operator.and_: "bitwise_and",
    operator.eq: "equal",
    operator.floordiv: "floor_divide",
    operator.ge: "greater_equal",
    operator.gt: "greater",
    operator.inv: "invert",
    operator.invert: "invert",
    operator.le: "less_equal",
    operator.lshift: "left_shift",
    operator.lt: "less",
    operator.mod: "remainder",
    operator.mul: "multiply",
    operator.ne: "not_equal",
    operator.neg: "negative",
    operator.or_: "bitwise_or",
    operator.pos: "positive",
    operator.pow: "pow",
    operator.rshift: "right_shift",
    operator.sub: "subtract",
    operator.truediv: "divide",
    operator.xor: "bitwise_xor",
}


def _enforce(x: Any, dtype: str) -> Any:
    """Cast a result to the dtype that Dask has inferred, as Dask does."""
    wanted = np.dtype(dtype)
    if x.dtype == wanted:
        return x
    if not np.can_cast(x.dtype, wanted, casting="same_kind"):
        raise ValueError(
            f"Inferred dtype was {str(wanted)!r} but got {str(x.dtype)!r}, which can't be cast "
            "using casting='same_kind'"
        )
    return x.astype(wanted)


#: Operations that are not ufuncs. ``pow`` is the operator, which has short cuts for exponents that
#: are Python scalars; ``clip_min`` and ``clip_max`` ignore a Python integer that the dtype has not;
#: the parameter of ``cast`` and ``enforce`` is a dtype, as text.
OTHERS: dict[str, Callable[..., Any]] = {
    "pow": operator.pow,
    "where": np.where,
    "clip": np.clip,
    "clip_min": lambda x, bound: np.clip(x, bound, None),
    "clip_max": lambda x, bound: np.clip(x, None, bound),
    "cast": lambda x, dtype: x.astype(dtype),
    "enforce": _enforce,
}

CASTS = frozenset({"cast", "enforce"})

#: NumPy's functions of the reductions, by name.
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "prod": np.prod,
    "min": np.min,
    "max": np.max,
    "any": np.any,
    "all": np.all,
    "argmin": np.argmin,
    "argmax": np.argmax,
}

#: Reductions with a dtype in which to add up or to multiply.
ACCUMULATING = frozenset({"sum", "prod"})
SELECTING = frozenset({"min", "max"})
INDEXING = frozenset({"argmin", "argmax"})


def name_of(func: Any) -> str | None:
    """Return the name of a function's operation; None if it has none."""
    if type(func) is np.ufunc:
        name = func.__name__
        return name if UFUNCS.get(name) is func else None
    if func is np.where:
        return "where"
    if func is np.clip:
        return "clip"
    try:
        return OPERATORS.get(func)
    except TypeError:  # not hashable
        return None


def arity(name: str) -> int:
    """Return the number of an operation's operands."""
    if name in UFUNCS:
        return UFUNCS[name].nin
    return {
        "pow": 2, "where": 3, "clip": 3, "clip_min": 2, "clip_max": 2, "cast": 1, "enforce": 1,
    }[name]  # fmt: skip
