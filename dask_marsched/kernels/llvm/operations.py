"""Writes the code of single operations; NumPy's inner loops compute those that have none here.

A cast of a float out of range to an integer is undefined in C, and NumPy's result depends on how it
was compiled. The processor raises a flag then, and NumPy evaluates the chunk; `is_doubtful` tells
which casts these are. Casts of what was an integer before raise none if both are in one loop, as
LLVM joins them; `stages` keeps them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir

from dask_marsched.kernels.expression import TypedNode
from dask_marsched.kernels.llvm.code import Code, supported, value_type
from dask_marsched.kernels.llvm.floats import COMPARED, compare, is_finite, is_infinite, sign

#: Writes the code of an operation, given its operands, and returns its value.
OperationCode = Callable[..., Any]


def _instruction(name: str, *first: str) -> OperationCode:
    return lambda code, *a: getattr(code.at, name)(*first, *a)


def _instructions(names: Mapping[str, str]) -> dict[str, OperationCode]:
    return {op: _instruction(name) for op, name in names.items()}


def _intrinsic(name: str) -> OperationCode:
    return lambda code, x: code.at.call(
        code.module.declare_intrinsic(f"llvm.{name}", [x.type]), [x]
    )


def _turned(above: float, below: float) -> OperationCode:
    """Convert angles: the factor is the quotient, in the precision of the angle as in NumPy."""

    def written(code: Code, x: Any) -> Any:
        kind = np.float32 if isinstance(x.type, ir.FloatType) else np.float64
        return code.at.fmul(x, ir.Constant(x.type, float(kind(above) / kind(below))))

    return written


def _square(code: Code, x: Any) -> Any:
    return code.at.fmul(x, x)


_SIGNS = {
    "equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">",
    "greater_equal": ">=",
}  # fmt: skip
_SILENT_FLOATS: dict[str, OperationCode] = {
    **{op: _intrinsic(op) for op in ("fabs", "floor", "ceil", "trunc", "rint")},
    **{op: partial(compare, op) for op in COMPARED},
    "absolute": _intrinsic("fabs"),
    "equal": _instruction("fcmp_ordered", "=="),
    "isfinite": is_finite,
    "isinf": is_infinite,
    "isnan": lambda code, x: code.at.fcmp_unordered("uno", x, x),
    "negative": _instruction("fneg"),
    "not_equal": _instruction("fcmp_unordered", "!="),
    "positive": lambda code, x: x,
    "sign": sign,
}
COMPARISONS = frozenset(_SIGNS)
#: Operations of a float that tell whether it is NaN, infinite, negative or zero.
CLASSIFICATIONS = frozenset({"isfinite", "isinf", "isnan", "sign"})
#: Operations of floats whose code raises no flag.
SILENT = frozenset({"input", "where", *_SILENT_FLOATS})
_FLOATS: dict[str, OperationCode] = {
    **_SILENT_FLOATS,
    **_instructions({"add": "fadd", "subtract": "fsub", "multiply": "fmul", "divide": "fdiv"}),
    **dict.fromkeys(("deg2rad", "radians"), _turned(np.pi, 180.0)),
    **dict.fromkeys(("rad2deg", "degrees"), _turned(180.0, np.pi)),
    "conjugate": lambda code, x: x,
    "reciprocal": lambda code, x: code.at.fdiv(ir.Constant(x.type, 1.0), x),
    "sqrt": _intrinsic("sqrt"),
    "square": _square,
}
_EXACT_POWERS = {
    2: _square, 1: _FLOATS["positive"], -1: _FLOATS["reciprocal"], 0.5: _FLOATS["sqrt"],
}  # fmt: skip
#: Up to `MOST_MULTIPLIED`.
_POWERS: dict[float, OperationCode] = {
    **_EXACT_POWERS,
    3: lambda code, x: code.at.fmul(_square(code, x), x),
    4: lambda code, x: _square(code, _square(code, x)),
}
_BITWISE = {"bitwise_and": "and_", "bitwise_or": "or_", "bitwise_xor": "xor", "invert": "not_"}
_LOGICAL = {"logical_and": "and_", "logical_or": "or_", "logical_xor": "xor", "logical_not": "not_"}
_BOOLS = _instructions({**_BITWISE, **_LOGICAL})
_INTEGERS: dict[str, OperationCode] = {
    **_instructions(_BITWISE),
    **_instructions({"add": "add", "subtract": "sub", "multiply": "mul", "negative": "neg"}),
    "positive": lambda code, x: x,
    "square": lambda code, x: code.at.mul(x, x),
}


def operation_code(
    node: TypedNode, operands: tuple[np.dtype[Any], ...], exact: bool
) -> OperationCode | None:
    """Return the code of an operation on operands of some dtypes; None if there is none here."""
    if not all(map(supported, (*operands, node.dtype))):
        return None
    op, kind = node.op, operands[-1].kind
    if op == "where":
        return _instruction("select")
    if op == "cast":
        if operands[0].kind == "f" and node.dtype.str[1:] in ("u4", "u8"):
            return None  # NumPy's result depends on the processor's instructions
        return partial(_cast, source=operands[0], target=node.dtype)
    if kind == "f" and op == "power":
        power = (_EXACT_POWERS if exact else _POWERS).get(node.param)
        return None if power is None else lambda code, x, _: power(code, x)
    if kind in "iu" and op in _SIGNS:
        # NumPy has inner loops of its own that compare signed with unsigned integers
        alike = operands[0] == operands[1]
        compared = "icmp_signed" if kind == "i" else "icmp_unsigned"
        return _instruction(compared, _SIGNS[op]) if alike else None
    return {"f": _FLOATS, "b": _BOOLS}.get(kind, _INTEGERS).get(op)


def is_doubtful(node: TypedNode, source: np.dtype[Any]) -> bool:
    """Whether the result of an operation is NumPy's only if no flag was raised."""
    return node.op == "cast" and source.kind == "f" and node.dtype.kind in "iu"


def _cast(code: Code, a: Any, source: np.dtype[Any], target: np.dtype[Any]) -> Any:
    at, kind = code.at, value_type(target)
    if value_type(source) == kind:
        return a
    if target.kind == "b":
        differs = at.fcmp_unordered if source.kind == "f" else at.icmp_unsigned
        return differs("!=", a, ir.Constant(a.type, 0))
    if target.kind == "f":
        if source.kind == "f":
            return at.fpext(a, kind) if source.itemsize < target.itemsize else at.fptrunc(a, kind)
        return at.sitofp(a, kind) if source.kind == "i" else at.uitofp(a, kind)
    if source.kind == "f":
        # as C compilers do: small integers through 32 bits
        width = 64 if target.itemsize == 8 else 32
        found = at.fptosi(a, ir.IntType(width))
        return found if width == 8 * target.itemsize else at.trunc(found, kind)
    if source.kind != "b" and source.itemsize > target.itemsize:
        return at.trunc(a, kind)
    return at.sext(a, kind) if source.kind == "i" else at.zext(a, kind)
