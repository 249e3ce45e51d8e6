"""Writes sums of floats in NumPy's order along contiguous memory.

NumPy halves a row until no part is longer than 128 elements, with first halves that are multiples
of 8, and adds up a part in 8 lanes (``pairwise_sum`` in its ``loops_utils.h.src``). The halves
depend only on the length of the row, so that it can be evaluated part by part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from dask_marsched.kernels.llvm.code import BLOCK, I64, Code, memory_type

_LEAF, _LANES = 128, 8
#: Halves of a row of 2**62 elements, down to a block.
DEPTH = 64
_INT64 = np.dtype(np.int64)


def _halves(code: Code, n: Any) -> tuple[Any, Any]:
    half = code.at.lshr(n, code.number(1))
    first = code.at.and_(half, code.number(-_LANES))
    return first, code.at.sub(n, first)


def sum_function(module: Any, dtype: np.dtype[Any]) -> Any:
    """Return the module's function that adds up floats, given their address and number."""
    name = f"sum_{dtype.name}"
    if name in module.globals:
        return module.globals[name]
    kind = memory_type(dtype)
    code = Code(name, 2, module, kind)
    at = code.at
    address, n = code.function.args
    total = code.variable(kind, ir.Constant(kind, -0.0))
    short = at.icmp_signed("<=", n, code.number(_LEAF))
    with code.when(short):
        _add_part(code, total, code.pointer(address, dtype), n, dtype)
    with code.when(at.not_(short)):
        first, rest = _halves(code, n)
        middle = code.add(address, code.multiply(first, dtype.itemsize))
        left = at.call(code.function, [address, first])
        code.set(total, at.fadd(left, at.call(code.function, [middle, rest])))
    code.end(code.get(total))
    return code.function


def _add_part(code: Code, total: Any, pointer: Any, n: Any, dtype: np.dtype[Any]) -> None:
    """Add up at most 128 floats."""
    at, whole = code.at, code.at.and_(n, code.number(-_LANES))
    with code.when(at.icmp_signed(">", whole, code.number(0))):
        first = _row(code, pointer, 0, dtype)
        lanes = code.variable(first.type, first)
        with code.loop(whole, start=_LANES, step=_LANES) as i:
            code.set(lanes, at.fadd(code.get(lanes), _row(code, pointer, i, dtype)))
        code.set(total, code.halved(code.get(lanes), at.fadd, neighbours=True))
    with code.loop(n, start=whole) as i:
        code.set(total, at.fadd(code.get(total), at.load(at.gep(pointer, [i]))))


def _row(code: Code, pointer: Any, i: Any, dtype: np.dtype[Any]) -> Any:
    at, vector = code.at, ir.VectorType(memory_type(dtype), _LANES)
    place = at.bitcast(at.gep(pointer, [code.number(i)]), vector.as_pointer())
    return at.load(place, align=dtype.itemsize)


class Tree:
    """Adds up rows by halves down to a block, in a loop with a stack instead of recursion.

    The sums of all dtypes are computed together. ``sizes`` and ``waiting`` are the addresses of the
    stack: `DEPTH` integers, and as many sums of each dtype.
    """

    def __init__(
        self,
        code: Code,
        dtypes: Sequence[np.dtype[Any]],
        sizes: Any,
        waiting: Sequence[Any],
    ) -> None:
        self.code = code
        #: By level, the length of the second half; 0 from its turn on.
        self.sizes = code.pointer(sizes, _INT64)
        self.waiting = [code.pointer(w, d) for w, d in zip(waiting, dtypes, strict=True)]
        self.depth, self.size = code.variable(I64, 0), code.variable(I64, 0)
        self.sums = [code.variable(memory_type(dtype)) for dtype in dtypes]

    def add_up(self, n: Any, evaluate: Callable[[Any], Sequence[Any]]) -> list[Any]:
        """Return the sums of ``n`` elements, at least 1.

        ``evaluate`` writes code that returns the sums of as many next elements as it is told.
        """
        code, at = self.code, self.code.at
        going = code.variable(I64, 1)
        code.set(self.depth, 0)
        code.set(self.size, n)
        with code.repeat(lambda: self._positive(code.get(going))):
            with code.repeat(self._is_long):
                first, rest = _halves(code, code.get(self.size))
                code.store(self.sizes, code.get(self.depth), rest)
                code.raise_by(self.depth, 1)
                code.set(self.size, first)
            for variable, value in zip(self.sums, evaluate(code.get(self.size)), strict=True):
                code.set(variable, value)
            with code.repeat(self._is_complete):
                code.raise_by(self.depth, -1)
                level = code.get(self.depth)
                for variable, waiting in zip(self.sums, self.waiting, strict=True):
                    half = at.load(at.gep(waiting, [level]))
                    code.set(variable, at.fadd(half, code.get(variable)))
            code.set(going, code.get(self.depth))
            with code.when(self._positive(code.get(going))):
                level = code.add(code.get(self.depth), -1)
                for variable, waiting in zip(self.sums, self.waiting, strict=True):
                    at.store(code.get(variable), at.gep(waiting, [level]))
                code.set(self.size, code.load(self.sizes, level, _INT64))
                code.store(self.sizes, level, code.number(0))
        return [code.get(variable) for variable in self.sums]

    def _positive(self, number: Any) -> Any:
        return self.code.at.icmp_signed(">", number, self.code.number(0))

    def _is_long(self) -> Any:
        return self.code.at.icmp_signed(">", self.code.get(self.size), self.code.number(BLOCK))

    def _is_complete(self) -> Any:
        """Whether the latest sum is that of a second half."""
        code, at = self.code, self.code.at
        depth = code.get(self.depth)
        # at depth 0 the number that is read does not matter
        level = at.select(self._positive(depth), code.add(depth, -1), code.number(0))
        last = at.icmp_signed("==", code.load(self.sizes, level, _INT64), code.number(0))
        return at.and_(self._positive(depth), last)
