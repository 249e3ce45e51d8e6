"""Writes the code of single operations; NumPy's inner loops compute those that have none here.

A cast of a float out of range to an integer is undefined in C, and NumPy's result depends on how it
was compiled. The processor raises a flag then, and NumPy evaluates the chunk; `is_doubtful` tells
which casts these are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from dask_marsched.kernels.expression import MOST_MULTIPLIED, TypedNode
from dask_marsched.kernels.llvm.code import Code, supported, value_type
from dask_marsched.kernels.llvm.floats import COMPARED, compare, is_finite, is_infinite, sign

_FLOATS = {"add": "fadd", "subtract": "fsub", "multiply": "fmul", "divide": "fdiv"}
_INTEGERS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "bitwise_and": "and_",
    "bitwise_or": "or_", "bitwise_xor": "xor",
}  # fmt: skip
_COMPARED = {
    "equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">",
    "greater_equal": ">=",
}  # fmt: skip
_ROUNDED = {"floor": "llvm.floor", "ceil": "llvm.ceil", "trunc": "llvm.trunc", "rint": "llvm.rint"}
#: Conversions of angles: a factor is the quotient, in the precision of the angle as in NumPy.
_TURNED = {
    "deg2rad": (np.pi, 180.0), "radians": (np.pi, 180.0),
    "rad2deg": (180.0, np.pi), "degrees": (180.0, np.pi),
}  # fmt: skip
_TESTS = {"isfinite": is_finite, "isinf": is_infinite}
_OF_FLOATS = frozenset(
    {"negative", "positive", "absolute", "fabs", "square", "sqrt", "reciprocal", "isnan",
     "equal", "not_equal", "conjugate", "sign", *_FLOATS, *_ROUNDED, *_TURNED, *_TESTS, *COMPARED}
)  # fmt: skip
_OF_BOOLS = {
    "bitwise_and": "and_", "bitwise_or": "or_", "bitwise_xor": "xor", "logical_and": "and_",
    "logical_or": "or_", "logical_xor": "xor",
}  # fmt: skip
_OF_INTEGERS = frozenset({"square", "negative", "positive", "invert", *_INTEGERS, *_COMPARED})
#: Operations of floats whose code raises no flag.
SILENT = frozenset(
    {"input", "negative", "positive", "absolute", "fabs", "isnan", "equal", "not_equal", "sign",
     *_ROUNDED, *_TESTS, *COMPARED}
)  # fmt: skip


def is_compiled(node: TypedNode, operands: tuple[np.dtype[Any], ...], exact: bool) -> bool:
    """Whether an operation, on operands of some dtypes, has code here."""
    if not all(map(supported, (*operands, node.dtype))):
        return False
    op, kind = node.op, operands[-1].kind
    if op == "where":
        return True
    if op == "cast":
        return not (operands[0].kind == "f" and node.dtype.str[1:] == "u8")
    if kind == "f":
        return _power(node.param, exact) if op == "power" else op in _OF_FLOATS
    if kind == "b":
        return op in _OF_BOOLS or op in ("invert", "logical_not")
    # NumPy has inner loops of its own that compare signed with unsigned integers
    return op in _OF_INTEGERS and (op not in _COMPARED or operands[0] == operands[1])


def is_doubtful(node: TypedNode, operands: tuple[np.dtype[Any], ...]) -> bool:
    """Whether the result of an operation is NumPy's only if no flag was raised."""
    return node.op == "cast" and operands[0].kind == "f" and node.dtype.kind in "iu"


def _power(exponent: Any, exact: bool) -> bool:
    if exponent in (2, 1, -1, 0.5):
        return True
    return not exact and exponent in range(3, MOST_MULTIPLIED + 1)


def compile_operation(
    code: Code, node: TypedNode, operands: tuple[np.dtype[Any], ...], a: list[Any]
) -> Any:
    """Write the code of an operation, and return its value."""
    if node.op == "where":
        return code.at.select(*a)
    if node.op == "cast":
        return _cast(code, operands[0], node.dtype, a[0])
    kind = operands[-1].kind
    if kind == "f":
        return _compile_floats(code, node, a)
    if kind == "b":
        return _compile_bools(code, node.op, a)
    return _compile_integers(code, node, operands, a)


def _cast(code: Code, source: np.dtype[Any], target: np.dtype[Any], a: Any) -> Any:
    at, kind = code.at, value_type(target)
    if target.kind == "b":
        zero = ir.Constant(a.type, 0)
        return at.fcmp_unordered("!=", a, zero) if source.kind == "f" else _is_set(code, source, a)
    if target.kind == "f":
        if source.kind == "f":
            return at.fpext(a, kind) if source.itemsize < target.itemsize else at.fptrunc(a, kind)
        return at.sitofp(a, kind) if source.kind == "i" else at.uitofp(a, kind)
    if source.kind == "f":
        # as C compilers do: small integers through 32 bits, unsigned ones through 64
        width = 64 if target.itemsize == 8 or target.str[1:] == "u4" else 32
        found = at.fptosi(a, ir.IntType(width))
        return found if width == 8 * target.itemsize else at.trunc(found, kind)
    if value_type(source) == kind:
        return a
    if source.kind != "b" and source.itemsize > target.itemsize:
        return at.trunc(a, kind)
    return at.sext(a, kind) if source.kind == "i" else at.zext(a, kind)


def _is_set(code: Code, dtype: np.dtype[Any], a: Any) -> Any:
    return a if dtype.kind == "b" else code.at.icmp_unsigned("!=", a, ir.Constant(a.type, 0))


def _compile_floats(code: Code, node: TypedNode, a: list[Any]) -> Any:
    at, op, x = code.at, node.op, a[0]
    if op in _FLOATS:
        return getattr(at, _FLOATS[op])(*a)
    if op == "power":
        op = {2: "square", 1: "positive", -1: "reciprocal", 0.5: "sqrt"}.get(node.param, op)
    if op in ("positive", "conjugate"):
        return x
    if op == "negative":
        return at.fneg(x)
    if op in COMPARED:
        return compare(code, op, *a)
    if op in _TESTS:
        return _TESTS[op](code, x)
    if op == "sign":
        return sign(code, x)
    if op in _TURNED:
        above, below = np.array(_TURNED[op], node.dtype)
        return at.fmul(x, ir.Constant(x.type, float(above / below)))
    if op in ("absolute", "fabs", "sqrt") or op in _ROUNDED:
        name = _ROUNDED.get(op, "llvm.sqrt" if op == "sqrt" else "llvm.fabs")
        return at.call(code.module.declare_intrinsic(name, [x.type]), [x])
    if op == "square":
        return at.fmul(x, x)
    if op == "reciprocal":
        return at.fdiv(ir.Constant(x.type, 1.0), x)
    if op == "power":
        squared = at.fmul(x, x)
        return at.fmul(squared, x if node.param == 3 else squared)
    if op == "isnan":
        return at.fcmp_unordered("uno", x, x)
    return (at.fcmp_ordered if op == "equal" else at.fcmp_unordered)(_COMPARED[op], *a)


def _compile_bools(code: Code, op: str, a: list[Any]) -> Any:
    return getattr(code.at, _OF_BOOLS[op])(*a) if op in _OF_BOOLS else code.at.not_(a[0])


def _compile_integers(
    code: Code, node: TypedNode, operands: tuple[np.dtype[Any], ...], a: list[Any]
) -> Any:
    at, op = code.at, node.op
    if op in _INTEGERS:
        return getattr(at, _INTEGERS[op])(*a)
    if op in _COMPARED:
        compare = at.icmp_signed if operands[0].kind == "i" else at.icmp_unsigned
        return compare(_COMPARED[op], *a)
    if op == "square":
        return at.mul(a[0], a[0])
    return {"negative": at.neg, "invert": at.not_}[op](a[0]) if op != "positive" else a[0]
