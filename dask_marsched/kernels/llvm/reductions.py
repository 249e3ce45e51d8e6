"""Writes the loops of a kernel that reduces, along rows or columns.

NumPy adds up as one row all innermost axes in memory that are reduced. A row may take several of
the kernel's loops, as these are joined only if every operand is contiguous over both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from dask_marsched.kernels.llvm.code import BLOCK, memory_type
from dask_marsched.kernels.llvm.folds import ReductionCode
from dask_marsched.kernels.llvm.kernel import Writer
from dask_marsched.kernels.llvm.pairwise import DEPTH, Tree, sum_function


class ReductionWriter(Writer):
    """Writes one kernel with reductions; see `Writer`."""

    def __init__(self, *key: Any) -> None:
        super().__init__(*key)
        self.reductions = []
        for position, kind, _ in self.outputs:
            dtype = self.nodes[position].dtype
            places = self._reserve(dtype.itemsize), self._reserve(dtype.itemsize)
            self.reductions.append(ReductionCode(self.code, kind or "", dtype, *places))
        self.noisy = any(reduction.noisy for reduction in self.reductions)
        #: Sums of floats, which are added up in NumPy's order.
        self.pairwise = [r for r in self.reductions if r.kind == "sum" and r.dtype.kind == "f"]
        self.others = [r for r in self.reductions if r not in self.pairwise]

    def _loops(self) -> None:
        if self.layout.mode == "columns":
            self._columns()
        else:
            self._rows()

    def _advance_inner(self) -> None:
        self._advance(self.kept, self.inner, range(len(self.inputs)))

    def _result(self, number: int) -> Any:
        return self.code.get(self.bases[len(self.inputs) + number])

    def _rows(self) -> None:
        """Write loops over NumPy's rows, each evaluated by halves down to a block."""
        code = self.code
        row = code.word(self.shape, self.dimensions)
        part = code.word(self.shape, code.add(self.dimensions, 1))
        count = code.multiply(self._product(self.kept, self.inner), self.length)
        self.offset, self.position = code.variable(value=0), code.variable(value=0)
        dtypes = [r.dtype for r in self.pairwise]
        waiting = [self._reserve(d.itemsize, DEPTH) for d in dtypes]
        tree = Tree(code, dtypes, self._reserve(8, DEPTH), waiting)
        totals = {r: code.variable(memory_type(r.dtype)) for r in self.pairwise}
        with code.loop(self._product(code.number(0), self.kept)):
            code.set(self.position, 0)
            for reduction in self.others:
                reduction.begin()
            for reduction, total in totals.items():
                code.set(total, ir.Constant(memory_type(reduction.dtype), 0.0))
            with code.loop(count, step=row), code.loop(row, step=part) as start:
                length = code.least(part, code.at.sub(row, start))
                sums = tree.add_up(length, self._evaluated)
                for total, found in zip(totals.values(), sums, strict=True):
                    code.set(total, code.at.fadd(code.get(total), found))
            for number, reduction in enumerate(self.reductions):
                if reduction in totals:
                    pointer = code.pointer(self._result(number), reduction.dtype)
                    code.at.store(code.get(totals[reduction]), pointer)
                    continue
                if reduction.zeros is not None:
                    self._doubt(reduction.doubtful())
                reduction.end(self._result(number))
            self._advance(code.number(0), self.kept, range(len(self.bases)))

    def _evaluated(self, length: Any) -> Sequence[Any]:
        """Evaluate elements of one or more turns of the innermost loop; return their sums."""
        code = self.code
        filled = code.variable(value=0)
        with code.repeat(lambda: code.at.icmp_signed("<", code.get(filled), length)):
            rest = code.at.sub(self.length, code.get(self.offset))
            self.m = code.least(rest, code.at.sub(length, code.get(filled)))
            self.targets = {
                k: code.at.gep(r.values, [code.get(filled)]) for k, r in enumerate(self.reductions)
            }
            self._block(code.get(self.offset))
            code.raise_by(filled, self.m)
            code.raise_by(self.offset, self.m)
            ended = code.at.icmp_signed("==", code.get(self.offset), self.length)
            with code.when(ended):
                code.set(self.offset, 0)
                self._advance_inner()
        if self.others:
            self._note_flags()
        for reduction in self.others:
            reduction.take(length, code.get(self.position))
        code.raise_by(self.position, length)
        if self.noisy:
            self._forget_flags()
        sums = []
        for reduction in self.pairwise:
            address = code.at.ptrtoint(reduction.values, length.type)
            function = sum_function(code.module, reduction.dtype)
            sums.append(code.at.call(function, [address, length]))
        return sums

    def _columns(self) -> None:
        """Write loops that join one row after the other with the running results."""
        code, reductions = self.code, self.reductions
        self.targets = {k: r.values for k, r in enumerate(reductions) if r.selects}
        self.running = dict(enumerate(reductions))
        inner = self._product(self.kept, self.inner)
        with code.loop(self._product(code.number(0), self.kept)):
            with code.loop(self.length, step=BLOCK) as start:
                self.m = code.least(BLOCK, code.at.sub(self.length, start))
                addresses = []
                for number, (_, _, dtype) in enumerate(self.outputs):
                    offset = code.multiply(start, dtype.itemsize)
                    addresses.append(code.add(self._result(number), offset))
                for reduction, address in zip(reductions, addresses, strict=True):
                    reduction.begin_columns(self.m, address)
                with code.loop(inner) as row:
                    self._block(start)
                    if self.noisy:
                        self._note_flags()
                    for reduction in reductions:
                        if reduction.selects:
                            reduction.take_columns(self.m, row)
                    if self.noisy:
                        self._forget_flags()
                    self._advance_inner()
                for reduction, address in zip(reductions, addresses, strict=True):
                    if reduction.zeros is not None:
                        self._doubt(reduction.doubtful_columns(self.m))
                    reduction.end_columns(self.m, address)
            self._advance(code.number(0), self.kept, range(len(self.bases)))
