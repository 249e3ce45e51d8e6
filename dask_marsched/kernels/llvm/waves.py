"""Writes sines and cosines of doubles, with the operations of the GNU C library in their order.

NumPy calls the C library for each element. Its results depend on each rounding, so the steps are
those of glibc since 2.28 with fused multiplication: an angle is reduced by multiples of pi/2 in
four parts. Its sine or cosine follows, by the addition theorem, from that of the nearest multiple
of 1/128, which a table holds to twice the precision of a double. There are no branches: all ways
are computed for each angle, and one of them is selected.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from dask_marsched.kernels.llvm.code import I64
from dask_marsched.kernels.llvm.floats import absolute_bits, bits, is_negative

_hex = float.fromhex
#: Bounds of the absolute value of an angle: below the first it is not reduced, below the second
#: it is subtracted from pi/2, and from the last on multiples of pi/2 are not exact.
_LOW, _MIDDLE, _LARGEST_EXACT = (n << 32 for n in (0x3FEB6000, 0x400368FD, 0x419921FB))
_HALF_PI, _REST = _hex("0x1.921fb54442d18p+0"), _hex("0x1.1a62633145c07p-54")
_PARTS = (
    _hex("0x1.921fb58p+0"), _hex("-0x1.dde973cp-27"),
    _hex("-0x1.cb3b398p-55"), _hex("-0x1.d747f23e32ed7p-83"),
)  # fmt: skip
#: Added to a double, these leave the nearest integer, or multiple of 1/128, in the last bits.
_TO_INTEGER, _TO_PART = 1.5 * 2.0**52, 1.5 * 2.0**45
_TAYLOR_BELOW = 0.126
_TAYLOR = (
    _hex("-0x1.addffc2fcdf59p-26"), _hex("0x1.71de27b9a7ed9p-19"),
    _hex("-0x1.a01a019db08b8p-13"), _hex("0x1.1111111110ecep-7"), _hex("-0x1.5555555555555p-3"),
)  # fmt: skip
_SIN = _hex("0x1.11110e829872fp-7"), _hex("-0x1.5555555555515p-3")
_COS = _hex("0x1.6c16bedd9e239p-10"), _hex("-0x1.5555555555535p-5"), 0.5
_SIGN = 1 << 63
_ROWS = 128
#: Rests in glibc's table that are not the nearest doubles: their places, and units to add.
_INEXACT = {
    9: 1, 41: 1, 93: 39, 107: 1, 109: 1, 133: 1, 137: 1, 145: 1, 161: -2, 179: 1, 283: 1, 301: 1,
    303: -2, 319: 1, 341: 1, 361: -2, 377: 1, 429: 1,
}  # fmt: skip


@cache
def _table() -> tuple[float, ...]:
    """Return, for multiples of 1/128, sine, its rest, cosine and its rest; then those a quarter on.

    A quarter of a turn on, the sine is the cosine, and the cosine is the sine with the other sign.
    """
    rows = np.zeros((2, _ROWS, 4))
    for number in range(110):
        for place, value in zip((0, 2), _sine_and_cosine(number), strict=True):
            rows[0, number, place] = float(value)
            rows[0, number, place + 1] = float(value - Decimal(float(value)))
    flat = rows.reshape(-1).view(np.int64)
    for place, units in _INEXACT.items():
        flat[place] += units
    rows[1, :, :2] = rows[0, :, 2:]
    rows[1, :, 2:] = -rows[0, :, :2]
    return tuple(rows.ravel().tolist())


def _sine_and_cosine(number: int) -> tuple[Decimal, Decimal]:
    with localcontext() as context:
        context.prec = 60
        x = Decimal(number) / _ROWS
        sums = [x, Decimal(1)]
        for odd, term in ((1, x), (0, Decimal(1))):
            for n in range(1 + odd, 60, 2):
                term *= -x * x / (n * (n + 1))
                sums[1 - odd] += term
        return sums[0], sums[1]


def wave(f: Any, x: Any, quarters: int) -> tuple[Any, Any]:
    """Return a sine, or the sine of ``quarters`` of a turn more; and whether it is not valid."""
    at = f.at
    size, none = absolute_bits(f.code, x), I64(0)
    low, middle = (at.icmp_unsigned("<", size, I64(bound)) for bound in (_LOW, _MIDDLE))
    reduced, lost, quarter = _reduced(f, x)
    quarter = at.add(quarter, I64(quarters))
    left = at.fsub(f.number(_HALF_PI), f.absolute(x))
    if quarters:
        near = at.fadd(left, f.number(_REST))
        rest = at.fadd(at.fsub(left, near), f.number(_REST))
        turned = none
    else:
        near, rest = left, f.number(_REST)
        turned = at.select(is_negative(f.code, x), I64(3), I64(1))
    angle = at.select(low, x, at.select(middle, near, reduced))
    short = at.select(low, f.number(0.0), at.select(middle, rest, lost))
    quarter = at.select(low, I64(quarters), at.select(middle, turned, quarter))
    value = _value(f, angle, short, at.and_(quarter, I64(1)))
    flipped = at.shl(at.and_(quarter, I64(2)), I64(62))
    found = at.bitcast(at.xor(bits(f.code, value), flipped), f.kind)
    count = I64((0x7FF << 52) - _LARGEST_EXACT + 1)  # infinity included, NaN not
    return found, at.icmp_unsigned("<", at.sub(size, I64(_LARGEST_EXACT)), count)


def _reduced(f: Any, x: Any) -> tuple[Any, Any, Any]:
    """Return an angle minus a multiple of pi/2, what was lost by rounding, and which multiple."""
    at = f.at
    shifted = f.fma(x, f.number(2 / np.pi), f.number(_TO_INTEGER))
    turns = at.fneg(at.fsub(shifted, f.number(_TO_INTEGER)))
    first, second, third, fourth = map(f.number, _PARTS)
    y = f.fma(turns, second, f.fma(turns, first, x))
    nearly = f.fma(turns, third, y)
    lost = f.fma(turns, third, at.fsub(y, nearly))
    angle = f.fma(turns, fourth, nearly)
    more = f.fma(turns, fourth, at.fsub(nearly, angle))
    return angle, at.fadd(lost, more), bits(f.code, shifted)


def _value(f: Any, angle: Any, short: Any, odd: Any) -> Any:
    """Return the sine, or the cosine if ``odd`` is 1, of a reduced angle."""
    at = f.at
    cosine = at.icmp_unsigned("!=", odd, I64(0))
    sign = at.and_(bits(f.code, angle), I64(_SIGN))
    size = f.absolute(angle)
    with_sign = at.bitcast(at.xor(bits(f.code, short), sign), f.kind)
    place = at.fadd(size, f.number(_TO_PART))
    x = at.fsub(size, at.fsub(place, f.number(_TO_PART)))
    x = at.select(cosine, at.fadd(x, with_sign), x)
    rest = at.select(cosine, f.number(0.0), with_sign)
    square = at.fmul(x, x)
    cube = at.fmul(x, square)
    of_sine = f.polynomial(square, _SIN)
    sine = at.select(cosine, f.fma(cube, of_sine, x), at.fadd(x, f.fma(cube, of_sine, with_sign)))
    less = f.fma(x, rest, at.fmul(square, f.polynomial(square, _COS)))
    row = at.add(at.and_(bits(f.code, place), I64(_ROWS - 1)), at.mul(odd, I64(_ROWS)))
    known, known_rest, other, other_rest = (_entry(f, row, n) for n in range(4))
    change = f.fma(sine, other_rest, known_rest)
    change = f.fma(sine, other, f.fma(at.fneg(less), known, change))
    value = at.fadd(known, change)
    series = f.polynomial(at.fmul(angle, angle), _TAYLOR)
    series = f.fma(series, angle, at.fmul(f.number(-0.5), short))
    series = at.fadd(angle, f.fma(at.fmul(angle, angle), series, short))
    below = at.icmp_unsigned("<", bits(f.code, size), I64(f.bits(_TAYLOR_BELOW)))
    few = at.and_(below, at.not_(cosine))
    value = absolute_bits(f.code, at.select(few, series, value))
    return at.bitcast(at.or_(value, at.select(cosine, I64(0), sign)), f.kind)


def _entry(f: Any, row: Any, column: int) -> Any:
    """Return an entry of the table, which becomes a part of the kernel."""
    module, name = f.code.module, "sines"
    if name not in module.globals:
        kind = ir.ArrayType(f.kind, 2 * _ROWS * 4)
        made = ir.GlobalVariable(module, kind, name)
        made.global_constant, made.linkage = True, "internal"
        made.initializer = kind(_table())
    index = f.at.add(f.at.mul(row, I64(4)), I64(column))
    found = f.at.load(f.at.gep(module.globals[name], [I64(0), index]))
    f.code.keep_apart(found, "alias.scope")
    return found
