"""Writes functions of floats as vector code that NumPy takes from the C library.

NumPy calls the C library for each element (6 to 10 ns). The functions here are valid for ordinary
operands, NaN included, and raise no flag for those. They report others: huge angles, infinities,
zero as a divisor. NumPy's inner loop evaluates a block with one of those.

Sines, cosines and hypotenuses have the C library's bits if that is glibc as it has been for years.
`proof` tries that out before they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from dask_marsched.kernels.expression import TypedNode
from dask_marsched.kernels.llvm.code import Code, memory_type
from dask_marsched.kernels.llvm.floats import (
    absolute_bits,
    bits,
    infinite_bits,
    is_infinite,
    is_negative,
    is_ordered,
    with_sign_of,
)
from dask_marsched.kernels.llvm.waves import wave
from dask_marsched.kernels.proof import FunctionClaim

Guarded = tuple[Any, Any]  #: A value, and whether the function is not valid for the operands

#: Functions that are exact by their definition.
_EXACT = frozenset({"remainder", "floor_divide", "fmod"})
#: Powers of two: beyond the first, and below the second, glibc scales the sides of a hypotenuse.
_LARGE, _TINY = 2.0**511, 2.0**-459
#: The other side is negligible if one is so many times larger.
_FAR = 2.0**54


@cache
def _multiplies_and_adds() -> bool:
    """Whether this processor multiplies and adds with one rounding."""
    features = llvm.get_host_cpu_features()
    return bool(features.get("fma") or features.get("fp-armv8") or features.get("neon"))


def has_function(
    node: TypedNode, operands: tuple[np.dtype[Any], ...], trusted: Collection[FunctionClaim]
) -> bool:
    """Whether a function of this module computes an operation on operands of some dtypes.

    Those that are exact only with the same C library have to be ``trusted``.
    """
    if any(d.kind != "f" or d.itemsize not in (4, 8) for d in (*operands, node.dtype)):
        return False
    known = node.op in _EXACT or (node.op, node.dtype) in trusted
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

    def absolute(self, x: Any) -> Any:
        return self.at.bitcast(absolute_bits(self.code, x), self.kind)

    def polynomial(self, z: Any, coefficients: tuple[float, ...]) -> Any:
        """Return the value of a polynomial; coefficients are in descending order."""
        found = self.number(coefficients[0])
        for coefficient in coefficients[1:]:
            found = self.fma(found, z, self.number(coefficient))
        return found


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
    sizes = absolute_bits(code, a), absolute_bits(code, b)
    swap = at.icmp_unsigned(">", sizes[1], sizes[0])
    x, y = (at.bitcast(size, f.kind) for size in sizes)
    x, y = at.select(swap, y, x), at.select(swap, x, y)
    apart = bits(code, at.fmul(y, f.number(_FAR)))
    far = at.icmp_unsigned(">=", bits(code, x), apart)
    doubtful = at.or_(f.beyond(a, _LARGE), f.beyond(b, _LARGE))
    tiny = at.icmp_unsigned("<", bits(code, y), apart.type(f.bits(_TINY)))
    found = at.select(far, at.fadd(x, y), _corrected(f, x, y, far))
    return found, at.or_(doubtful, at.and_(tiny, at.not_(far)))


def _corrected(f: _Floats, x: Any, y: Any, far: Any) -> Any:
    """Return the root of the sum of squares, its rounding error corrected (x >= y >= 0)."""
    at, code, two = f.at, f.code, f.number(2.0)
    root = f.intrinsic("llvm.sqrt", at.fadd(at.fmul(x, x), at.fmul(y, y)))
    alike = at.icmp_unsigned("<=", bits(code, root), bits(code, at.fmul(two, y)))
    delta = at.fsub(root, at.select(alike, y, x))
    twice = at.fmul(two, delta)
    near = at.fmul(x, at.fsub(twice, x))
    rest = at.fmul(at.fsub(delta, at.fmul(two, at.fsub(x, y))), delta)
    long = at.fmul(twice, at.fsub(x, at.fmul(two, y)))
    flat = at.fadd(at.fmul(at.fsub(at.fmul(f.number(4.0), delta), y), y), at.fmul(delta, delta))
    error = at.fadd(at.select(alike, near, long), at.select(alike, rest, flat))
    divisor = at.select(far, two, at.fmul(two, root))  # not 0, where both sides are
    return at.fsub(root, at.fdiv(error, divisor))


_FUNCTIONS: dict[str, Callable[..., Guarded]] = {
    "sin": lambda f, x: wave(f, x, 0),
    "cos": lambda f, x: wave(f, x, 1),
    "fmod": _divided,
    "remainder": _remainder,
    "floor_divide": _floor_divide,
    "hypot": _hypot,
}
