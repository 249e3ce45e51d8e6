"""Writes one reduction of a kernel: its start, the reduction of values, and its result.

Along the innermost loop ("rows") a block of values is folded into one value; along outer loops
("columns") each row of values is joined with the running results. `pairwise` adds up float rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from dask_marsched.kernels.backend import UnsupportedError
from dask_marsched.kernels.llvm.code import I1, I64, Code, memory_type, supported
from dask_marsched.kernels.llvm.floats import bits, is_negative, is_zero

LANES = 64  #: Number of values that are reduced side by side

_INTP = np.dtype(np.intp)


class ReductionCode:
    """One reduction of a kernel. Its result is NumPy's to the last bit.

    ``values`` and ``more`` are addresses of buffers for a block of values and of running results.
    """

    def __init__(self, code: Code, kind: str, dtype: np.dtype[Any], values: Any, more: Any) -> None:
        if not supported(dtype):
            raise UnsupportedError(f"{kind} of {dtype.name}")
        self.code, self.kind, self.dtype = code, kind, dtype
        self.values, self.more = code.pointer(values, dtype), code.pointer(more, dtype)
        self.finds = kind in ("argmin", "argmax")
        self.selects = kind in ("min", "max") or self.finds
        #: Whether its comparisons raise flags that NumPy would not report.
        self.noisy = self.selects and dtype.kind == "f"
        #: Products of floats are taken in order: in another one they may overflow or vanish.
        self.in_order = kind == "prod" and dtype.kind == "f"
        #: Bits for the zeros seen, 1 for +0.0 and 2 for -0.0: between them NumPy has to choose.
        self.zeros = code.variable(value=0) if self.noisy else None

    def join(self, a: Any, b: Any) -> Any:
        """Return the reduction of two values, or of two vectors element by element."""
        at = self.code.at
        if self.selects:
            return at.select(self._stays(a, b), a, b)
        if self.kind in ("any", "all"):
            return at.or_(a, b) if self.kind == "any" else at.and_(a, b)
        if self.dtype.kind == "f":
            return at.fadd(a, b) if self.kind == "sum" else at.fmul(a, b)
        return at.add(a, b) if self.kind == "sum" else at.mul(a, b)

    def _stays(self, a: Any, b: Any) -> Any:
        """Whether the first value stays the least or greatest; NaN does."""
        at, sign = self.code.at, "<=" if self.kind in ("min", "argmin") else ">="
        if self.dtype.kind == "f":
            return at.or_(at.fcmp_ordered(sign, a, b), at.fcmp_unordered("uno", a, a))
        return (at.icmp_signed if self.dtype.kind == "i" else at.icmp_unsigned)(sign, a, b)

    def _neutral(self) -> Any:
        """Return the value that a sum, product or logical reduction starts from."""
        number = {"sum": 0, "prod": 1, "any": 0, "all": 1}[self.kind]
        kind = memory_type(self.dtype)
        return kind(float(number) if self.dtype.kind == "f" else number)

    def _fold(self, length: Any) -> Any:
        """Return the reduction of a block of values, by lanes."""
        code, at = self.code, self.code.at
        rows = at.udiv(code.add(length, LANES - 1), code.number(LANES))
        first = at.load(self.values) if self.selects else self._neutral()
        with code.loop(code.multiply(rows, LANES), start=length) as i:
            at.store(first, at.gep(self.values, [i]))
        vector = ir.VectorType(memory_type(self.dtype), LANES)
        lanes = at.bitcast(self.values, vector.as_pointer())

        def row(number: Any) -> Any:
            return at.load(at.gep(lanes, [number]), align=self.dtype.itemsize)

        total = code.variable(vector)
        code.set(total, row(code.number(0)))
        with code.loop(rows, start=1) as i:
            code.set(total, self.join(code.get(total), row(i)))
        return code.halved(code.get(total), self.join, neighbours=False)

    def begin(self) -> None:
        """Start a row."""
        code = self.code
        self.started, self.place = code.variable(value=0), code.variable(value=0)
        # In memory, not in a register: the comparison is made before the flags are cleared.
        cell = self.more if self.noisy else None
        self.best = cell or code.variable(memory_type(self.dtype))
        if self.zeros is not None:
            code.set(self.zeros, 0)
        if not self.selects:
            code.set(self.best, self._neutral())

    def take(self, length: Any, position: Any) -> None:
        """Reduce a block of values, the first of which has a position in the row."""
        code = self.code
        if self.in_order:
            with code.loop(length) as i:
                factor = code.at.load(code.at.gep(self.values, [i]))
                code.set(self.best, self.join(code.get(self.best), factor))
            return
        value = self._fold(length)
        if not self.selects:
            code.set(self.best, self.join(code.get(self.best), value))
            return
        self._note_zeros(value, length)
        first = code.at.icmp_signed("==", code.get(self.started), code.number(0))
        worse = code.at.not_(self._stays(code.get(self.best), value))
        with code.when(code.at.or_(first, worse)):
            code.set(self.best, value)
            if self.finds:
                code.set(self.place, code.add(position, self._where(value, length)))
        code.set(self.started, 1)

    def _note_zeros(self, value: Any, length: Any) -> None:
        """Note the zeros of a block whose least or greatest value is one."""
        if self.zeros is None:
            return
        code, at = self.code, self.code.at
        with code.when(is_zero(code, value)), code.loop(length) as i:
            element = at.load(at.gep(self.values, [i]))
            sign = at.select(is_negative(code, element), code.number(2), code.number(1))
            sign = at.select(is_zero(code, element), sign, code.number(0))
            code.set(self.zeros, at.or_(code.get(self.zeros), sign))

    def doubtful(self) -> Any:
        """Return whether the result of a row is a zero, and zeros of both signs were seen."""
        code, at = self.code, self.code.at
        both = at.icmp_signed("==", code.get(self.zeros), code.number(3))
        return at.and_(both, is_zero(code, code.get(self.best)))

    def _where(self, value: Any, length: Any) -> Any:
        """Return the index of the first element that equals a value, or is NaN as it is."""
        code, at = self.code, self.code.at
        found = code.variable(I64, length)
        with code.loop(length) as k:
            i = at.sub(at.sub(length, code.number(1)), k)  # backwards: the first one stays
            element = at.load(at.gep(self.values, [i]))
            if self.dtype.kind == "f":
                nan = at.fcmp_unordered("uno", value, value)
                both = at.and_(nan, at.fcmp_unordered("uno", element, element))
                same = at.or_(both, at.fcmp_ordered("==", element, value))
            else:
                same = at.icmp_unsigned("==", element, value)
            code.set(found, at.select(same, i, code.get(found)))
        return code.get(found)

    def end(self, target: Any) -> None:
        """Store the result of a row at an address."""
        code = self.code
        if self.finds:
            code.at.store(code.get(self.place), code.pointer(target, _INTP))
        else:
            code.at.store(code.get(self.best), code.pointer(target, self.dtype))

    def begin_columns(self, length: Any, target: Any) -> None:
        """Start a block of columns, whose results will be stored at an address."""
        code = self.code
        if self.zeros is not None:
            code.set(self.zeros, 0)
        if self.finds:
            self.places = code.pointer(target, _INTP)
        if not self.selects:
            start = self._neutral()
            with code.loop(length) as i:
                code.at.store(start, code.at.gep(self.more, [i]))

    def joined(self, value: Any, i: Any) -> Any:
        """Return the reduction of column ``i`` so far and one more value."""
        if value.type == I1:
            value = self.code.at.zext(value, memory_type(self.dtype))
        return self.join(self.code.at.load(self.code.at.gep(self.more, [i])), value)

    def take_columns(self, length: Any, row: Any) -> None:
        """Reduce a row of values for a minimum, a maximum or the index of one."""
        code, at = self.code, self.code.at
        first = at.icmp_signed("==", row, code.number(0))
        with code.when(first), code.loop(length) as i:
            at.store(at.load(at.gep(self.values, [i])), at.gep(self.more, [i]))
            if self.finds:
                at.store(code.number(0), at.gep(self.places, [i]))
        with code.when(at.not_(first)), code.loop(length) as i:
            old, new = at.load(at.gep(self.more, [i])), at.load(at.gep(self.values, [i]))
            stays = self._stays(old, new)
            at.store(at.select(stays, old, new), at.gep(self.more, [i]))
            if self.zeros is not None:
                mixed = at.icmp_signed("!=", bits(code, old), bits(code, new))
                mixed = at.and_(mixed, at.and_(is_zero(code, old), is_zero(code, new)))
                both = at.select(mixed, code.number(3), code.number(0))
                code.set(self.zeros, at.or_(code.get(self.zeros), both))
            if self.finds:
                place = at.gep(self.places, [i])
                at.store(at.select(stays, at.load(place), row), place)

    def doubtful_columns(self, length: Any) -> Any:
        """Return whether a result of a block is a zero, and a column had zeros of both signs."""
        code, at = self.code, self.code.at
        found = code.variable(value=0)
        both = at.icmp_signed("==", code.get(self.zeros), code.number(3))
        with code.when(both), code.loop(length) as i:
            zero = is_zero(code, at.load(at.gep(self.more, [i])))
            code.set(found, at.or_(code.get(found), at.zext(zero, I64)))
        return at.icmp_signed("!=", code.get(found), code.number(0))

    def end_columns(self, length: Any, target: Any) -> None:
        """Store the results of a block of columns at an address."""
        code, at = self.code, self.code.at
        if self.finds:
            return
        pointer = code.pointer(target, self.dtype)
        with code.loop(length) as i:
            at.store(at.load(at.gep(self.more, [i])), at.gep(pointer, [i]))
