"""Writes comparisons of floats, and functions of their bits, that raise no flag.

The processor's ordered comparisons flag every NaN as invalid, while NumPy's comparisons do not warn
of NaN. So floats are ordered as integers; tests for equality and NaN raise no flag.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from dask_marsched.kernels.llvm.code import Code

COMPARED = frozenset({"less", "less_equal", "greater", "greater_equal"})  #: The ordered comparisons


def _width(kind: Any) -> int:
    return 32 if isinstance(kind, ir.FloatType) else 64


def bits(code: Code, x: Any) -> Any:
    """Return a float's bits, as an integer."""
    return code.at.bitcast(x, ir.IntType(_width(x.type)))


def absolute_bits(code: Code, x: Any) -> Any:
    """Return the bits of a float without its sign, in the order of floats; NaN is the greatest."""
    found = bits(code, x)
    return code.at.and_(found, found.type((1 << _width(x.type) - 1) - 1))


def is_negative(code: Code, x: Any) -> Any:
    """Return whether a float's sign is set."""
    found = bits(code, x)
    return code.at.icmp_signed("<", found, found.type(0))


def is_zero(code: Code, x: Any) -> Any:
    """Return whether a float is a zero of either sign."""
    return code.at.fcmp_ordered("==", x, ir.Constant(x.type, 0.0))


def is_ordered(code: Code, a: Any, b: Any) -> Any:
    """Return whether neither is NaN."""
    return code.at.fcmp_ordered("ord", a, b)


def with_sign_of(code: Code, x: Any, y: Any) -> Any:
    """Return a float with the sign of another one."""
    kind = ir.IntType(_width(x.type))
    sign = kind(1 << _width(x.type) - 1)
    found = code.at.or_(absolute_bits(code, x), code.at.and_(bits(code, y), sign))
    return code.at.bitcast(found, x.type)


def infinite_bits(kind: Any) -> int:
    """Return the bits of infinity."""
    return 0x7F800000 if _width(kind) == 32 else 0x7FF0000000000000


def is_finite(code: Code, x: Any) -> Any:
    """Return whether a float is neither infinite nor NaN."""
    found = absolute_bits(code, x)
    return code.at.icmp_unsigned("<", found, found.type(infinite_bits(x.type)))


def is_infinite(code: Code, x: Any) -> Any:
    """Return whether a float is infinite."""
    found = absolute_bits(code, x)
    return code.at.icmp_unsigned("==", found, found.type(infinite_bits(x.type)))


def compare(op: str, code: Code, a: Any, b: Any) -> Any:
    """Return the result of an ordered comparison."""
    if op.startswith("greater"):
        a, b = b, a
    at = code.at
    less = at.icmp_signed("<", _in_order(code, a), _in_order(code, b))
    # -0.0 is not less than 0.0
    found = at.and_(less, at.fcmp_ordered("!=", a, b))
    return found if op in ("less", "greater") else at.or_(found, at.fcmp_ordered("==", a, b))


def _in_order(code: Code, x: Any) -> Any:
    """Return an integer; integers are in the order of their floats."""
    at, found = code.at, bits(code, x)
    width = _width(x.type)
    negative = at.ashr(found, found.type(width - 1))
    return at.xor(found, at.and_(negative, found.type((1 << width - 1) - 1)))


def sign(code: Code, x: Any) -> Any:
    """Return NumPy's ``sign``."""
    at = code.at
    nan = at.fcmp_unordered("uno", x, x)
    one = with_sign_of(code, ir.Constant(x.type, 1.0), x)
    return at.select(nan, x, at.select(is_zero(code, x), ir.Constant(x.type, 0.0), one))
