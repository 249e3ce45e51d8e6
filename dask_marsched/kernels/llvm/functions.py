"""Writes functions of floats as vector code that NumPy takes from the C library.

NumPy calls the C library for each element (6 to 10 ns). The functions here are valid for ordinary
operands, NaN included, and raise no flag for those. They report others: huge angles, infinities,
zero as a divisor. NumPy's inner loop evaluates a block with one of those.

Sources: the reduction of an angle by multiples of pi/2 in three parts is that of W. J. Cody and
W. Waite, exact in its first step by fused multiplication; the polynomials are those of FreeBSD's
``k_sin.c`` and ``k_cos.c`` (Sun Microsystems, 1993).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from dask_marsched.kernels.expression import TypedNode
from dask_marsched.kernels.llvm.code import Code, memory_type
from dask_marsched.kernels.llvm.floats import (
    absolute_bits,
    infinite_bits,
    is_infinite,
    is_negative,
    is_ordered,
    with_sign_of,
)

Guarded = tuple[Any, Any]  #: A value, and whether the function is not valid for the operands

_EXACT = frozenset({"remainder", "floor_divide", "fmod"})
_LARGEST_ANGLE = 2.0**22  #: Largest valid angle, in radians
#: Between these the square of a double neither overflows nor loses bits.
_SQUARABLE = (2.0**-480, 2.0**480)
#: Added to a small double, this leaves the nearest integer in the last bits.
_ROUNDING = 1.5 * 2.0**52
_HALF_PI = (
    float.fromhex("0x1.921fb54442d18p+0"),
    float.fromhex("0x1.1a62633145c07p-54"),
    float.fromhex("-0x1.f1976b7ed8fbcp-110"),
)
_SIN = (
    -1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04,
    2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10,
)  # fmt: skip
_COS = (
    4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05,
    -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11,
)  # fmt: skip


@cache
def _multiplies_and_adds() -> bool:
    """Whether this processor multiplies and adds with one rounding."""
    features = llvm.get_host_cpu_features()
    return bool(features.get("fma") or features.get("fp-armv8") or features.get("neon"))


def has_function(node: TypedNode, operands: tuple[np.dtype[Any], ...], exact: bool) -> bool:
    """Whether a function of this module computes an operation on operands of some dtypes."""
    if any(d.kind != "f" or d.itemsize not in (4, 8) for d in (*operands, node.dtype)):
        return False
    if node.op in ("sin", "cos"):
        known = node.dtype.itemsize == 8 and not exact
    elif node.op == "hypot":
        known = not exact
    else:
        known = node.op in _EXACT
    return known and _multiplies_and_adds()


def write_function(code: Code, node: TypedNode, operands: list[Any]) -> Guarded:
    """Return the value of such an operation, as code."""
    return _FUNCTIONS[node.op](_Floats(code, node.dtype), *operands)


class _Floats:
    """Arithmetic of one kind of floats."""

    def __init__(self, code: Code, dtype: np.dtype[Any]) -> None:
        self.code, self.at, self.dtype = code, code.at, dtype
        self.kind = memory_type(dtype)

    def number(self, value: float) -> Any:
        return ir.Constant(self.kind, value)

    def intrinsic(self, name: str, *args: Any) -> Any:
        kinds = [self.kind]
        if name == "llvm.fma":
            function = ir.FunctionType(self.kind, [self.kind] * 3)
            return self.at.call(self.code.module.declare_intrinsic(name, kinds, function), args)
        return self.at.call(self.code.module.declare_intrinsic(name, kinds), args)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.intrinsic("llvm.fma", a, b, c)

    def bits(self, value: float) -> int:
        return int(np.array(value, self.dtype).view(f"u{self.dtype.itemsize}"))

    def beyond(self, x: Any, most: float) -> Any:
        """Whether the absolute value of a number is greater than a bound; that of NaN is not."""
        found = absolute_bits(self.code, x)
        first = self.bits(most) + 1
        count = found.type(infinite_bits(self.kind) - first + 1)
        return self.at.icmp_unsigned("<", self.at.sub(found, found.type(first)), count)

    def polynomial(self, z: Any, coefficients: tuple[float, ...]) -> Any:
        """Return the value of a polynomial; coefficients are in ascending order."""
        found = self.number(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            found = self.fma(found, z, self.number(coefficient))
        return found


# -- sines and cosines ---------------------------------------------------------------------


def _reduced(f: _Floats, x: Any) -> tuple[Any, Any, Any]:
    """Return an angle minus a multiple of pi/2, its rounding error, and which multiple it is."""
    at = f.at
    shifted = at.fadd(at.fmul(x, f.number(2 / np.pi)), f.number(_ROUNDING))
    multiple = at.bitcast(shifted, ir.IntType(64))
    n = at.fneg(at.fsub(shifted, f.number(_ROUNDING)))
    high, middle, low = map(f.number, _HALF_PI)
    first = f.fma(n, high, x)  # exact: a multiple of 2**-53 below 1
    angle = f.fma(n, middle, first)
    short = f.fma(n, low, f.fma(n, middle, at.fsub(first, angle)))
    return angle, short, multiple


def _sine(f: _Floats, x: Any, short: Any, z: Any) -> Any:
    at = f.at
    cube = at.fmul(z, x)
    tail = f.polynomial(z, _SIN[1:])
    inner = f.fma(z, f.fma(f.number(0.5), short, at.fneg(at.fmul(cube, tail))), at.fneg(short))
    return at.fsub(x, f.fma(cube, f.number(-_SIN[0]), inner))


def _cosine(f: _Floats, x: Any, short: Any, z: Any) -> Any:
    at = f.at
    tail = at.fmul(z, f.polynomial(z, _COS))
    half = at.fmul(f.number(0.5), z)
    most = at.fsub(f.number(1.0), half)
    lost = at.fsub(at.fsub(f.number(1.0), most), half)
    return at.fadd(most, at.fadd(lost, f.fma(z, tail, at.fneg(at.fmul(x, short)))))


def _wave(quarters: int) -> Callable[[_Floats, Any], Guarded]:
    def function(f: _Floats, x: Any) -> Guarded:
        at = f.at
        angle, short, multiple = _reduced(f, x)
        z = at.fmul(angle, angle)
        quarter = at.add(multiple, multiple.type(quarters))
        odd = at.icmp_unsigned("!=", at.and_(quarter, multiple.type(1)), multiple.type(0))
        found = at.select(odd, _cosine(f, angle, short, z), _sine(f, angle, short, z))
        sign = at.shl(at.and_(quarter, multiple.type(2)), multiple.type(62))
        found = at.bitcast(at.xor(at.bitcast(found, multiple.type), sign), f.kind)
        return found, f.beyond(x, _LARGEST_ANGLE)

    return function


# -- remainders ----------------------------------------------------------------------------


def _divided(f: _Floats, a: Any, b: Any) -> tuple[Any, Any]:
    """Return C's ``fmod``, exactly, and whether this is not valid for the operands."""
    at = f.at
    quotient = at.fdiv(a, b)
    whole = f.intrinsic("llvm.trunc", quotient)
    # The quotient may have been rounded up to the next integer, never down to one. If it was, the
    # rest has the other sign; it is exact in either case.
    rest = f.fma(at.fneg(whole), b, a)
    back = with_sign_of(f.code, b, a)
    wrong = at.xor(is_negative(f.code, rest), is_negative(f.code, a))
    zero = at.fcmp_unordered("ueq", rest, f.number(0.0))
    rest = at.select(at.and_(wrong, at.not_(zero)), at.fadd(rest, back), rest)
    rest = with_sign_of(f.code, rest, a)
    largest = 2.0 ** (23 if f.dtype.itemsize == 4 else 52)
    nothing = at.fcmp_ordered("==", b, f.number(0.0))  # 0 / 0 is no number
    doubtful = at.or_(at.or_(f.beyond(quotient, largest), nothing), is_infinite(f.code, b))
    return rest, at.and_(is_ordered(f.code, a, b), doubtful)


def _remainder(f: _Floats, a: Any, b: Any) -> Guarded:
    at = f.at
    rest, doubtful = _divided(f, a, b)
    zero = at.fcmp_ordered("==", rest, f.number(0.0))
    other = at.xor(is_negative(f.code, rest), is_negative(f.code, b))
    moved = at.select(other, at.fadd(rest, b), rest)
    return at.select(zero, with_sign_of(f.code, rest, b), moved), doubtful


def _floor_divide(f: _Floats, a: Any, b: Any) -> Guarded:
    # as NumPy's npy_divmod
    at = f.at
    rest, doubtful = _divided(f, a, b)
    zero = at.fcmp_ordered("==", rest, f.number(0.0))
    other = at.xor(is_negative(f.code, rest), is_negative(f.code, b))
    quotient = at.fdiv(at.fsub(a, rest), b)
    less = at.and_(other, at.not_(zero))
    quotient = at.select(less, at.fsub(quotient, f.number(1.0)), quotient)
    floor = f.intrinsic("llvm.floor", quotient)
    more = f.beyond(at.fsub(quotient, floor), 0.5)
    floor = at.select(more, at.fadd(floor, f.number(1.0)), floor)
    none = at.fcmp_ordered("==", quotient, f.number(0.0))
    return at.select(none, with_sign_of(f.code, f.number(0.0), at.fdiv(a, b)), floor), doubtful


# -- hypotenuses ---------------------------------------------------------------------------


def _hypot(f: _Floats, a: Any, b: Any) -> Guarded:
    at, code = f.at, f.code
    if f.dtype.itemsize == 4:
        # squares of floats are exact in double; the C library does the same
        wide = _Floats(code, np.dtype(np.float64))
        x, y = at.fpext(a, wide.kind), at.fpext(b, wide.kind)
        square = at.fadd(at.fmul(x, x), at.fmul(y, y))
        found = at.fptrunc(wide.intrinsic("llvm.sqrt", square), f.kind)
        return found, at.or_(f.beyond(a, 2.0**126), f.beyond(b, 2.0**126))
    found = f.intrinsic("llvm.sqrt", f.fma(a, a, at.fmul(b, b)))
    least, most = _SQUARABLE
    larger = _larger_bits(code, a, b)
    small = at.icmp_unsigned("<", larger, larger.type(f.bits(least)))
    nothing = at.icmp_unsigned("==", larger, larger.type(0))
    small = at.and_(small, at.not_(nothing))
    large = at.or_(f.beyond(a, most), f.beyond(b, most))
    return found, at.or_(small, large)


def _larger_bits(code: Code, a: Any, b: Any) -> Any:
    x, y = absolute_bits(code, a), absolute_bits(code, b)
    return code.at.select(code.at.icmp_unsigned(">", x, y), x, y)


_FUNCTIONS: dict[str, Callable[..., Guarded]] = {
    "sin": _wave(0),
    "cos": _wave(1),
    "fmod": _divided,
    "remainder": _remainder,
    "floor_divide": _floor_divide,
    "hypot": _hypot,
}
