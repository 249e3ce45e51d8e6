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


def write_reductions(writer: Writer) -> None:
    """Write the loops of a kernel along rows or columns, by the mode of its layout."""
    loops = _Loops(writer)
    if writer.layout.mode == "columns":
        loops.columns()
    else:
        loops.rows()


class _Loops:
    def __init__(self, writer: Writer) -> None:
        self.writer, self.code = writer, writer.code
        self.reductions = []
        for position, kind, _ in writer.outputs:
            dtype = writer.nodes[position].dtype
            places = writer.reserve(dtype.itemsize), writer.reserve(dtype.itemsize)
            self.reductions.append(ReductionCode(self.code, kind or "", dtype, *places))
        self.noisy = any(reduction.noisy for reduction in self.reductions)
        #: Sums of floats, which are added up in NumPy's order.
        self.pairwise = [r for r in self.reductions if r.kind == "sum" and r.dtype.kind == "f"]
        self.others = [r for r in self.reductions if r not in self.pairwise]
        self.operands = range(len(writer.inputs))
        self.everything = range(len(writer.bases))

    def _advance_inner(self) -> None:
        self.writer.advance(self.writer.kept, self.writer.inner, self.operands)

    def _result(self, number: int) -> Any:
        return self.code.get(self.writer.bases[len(self.operands) + number])

    def rows(self) -> None:
        """Write loops over NumPy's rows, each evaluated by halves down to a block."""
        writer, code = self.writer, self.code
        row = code.word(writer.shape, writer.dimensions)
        part = code.word(writer.shape, code.add(writer.dimensions, 1))
        count = code.multiply(writer.product(writer.kept, writer.inner), writer.length)
        self.offset, self.position = code.variable(value=0), code.variable(value=0)
        dtypes = [r.dtype for r in self.pairwise]
        waiting = [writer.reserve(d.itemsize, DEPTH) for d in dtypes]
        tree = Tree(code, dtypes, writer.reserve(8, DEPTH), waiting)
        totals = {r: code.variable(memory_type(r.dtype)) for r in self.pairwise}
        with code.loop(writer.product(code.number(0), writer.kept)):
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
                    writer.doubt(reduction.doubtful())
                reduction.end(self._result(number))
            writer.advance(code.number(0), writer.kept, self.everything)

    def _evaluated(self, length: Any) -> Sequence[Any]:
        """Evaluate elements of one or more turns of the innermost loop; return their sums."""
        writer, code = self.writer, self.code
        filled = code.variable(value=0)
        with code.repeat(lambda: code.at.icmp_signed("<", code.get(filled), length)):
            rest = code.at.sub(writer.length, code.get(self.offset))
            writer.m = code.least(rest, code.at.sub(length, code.get(filled)))
            writer.targets = {
                k: code.at.gep(r.values, [code.get(filled)]) for k, r in enumerate(self.reductions)
            }
            writer.block(code.get(self.offset))
            code.raise_by(filled, writer.m)
            code.raise_by(self.offset, writer.m)
            ended = code.at.icmp_signed("==", code.get(self.offset), writer.length)
            with code.when(ended):
                code.set(self.offset, 0)
                self._advance_inner()
        if self.others:
            writer.note_flags()
        for reduction in self.others:
            reduction.take(length, code.get(self.position))
        code.raise_by(self.position, length)
        if self.noisy:
            writer.forget_flags()
        sums = []
        for reduction in self.pairwise:
            address = code.at.ptrtoint(reduction.values, length.type)
            function = sum_function(code.module, reduction.dtype)
            sums.append(code.at.call(function, [address, length]))
        return sums

    def columns(self) -> None:
        """Write loops that join one row after the other with the running results."""
        writer, code, reductions = self.writer, self.code, self.reductions
        writer.targets = {k: r.values for k, r in enumerate(reductions) if r.selects}
        writer.running = dict(enumerate(reductions))
        inner = writer.product(writer.kept, writer.inner)
        with code.loop(writer.product(code.number(0), writer.kept)):
            with code.loop(writer.length, step=BLOCK) as start:
                writer.m = code.least(BLOCK, code.at.sub(writer.length, start))
                addresses = []
                for number, (_, _, dtype) in enumerate(writer.outputs):
                    offset = code.multiply(start, dtype.itemsize)
                    addresses.append(code.add(self._result(number), offset))
                for reduction, address in zip(reductions, addresses, strict=True):
                    reduction.begin_columns(writer.m, address)
                with code.loop(inner) as row:
                    writer.block(start)
                    if self.noisy:
                        writer.note_flags()
                    for reduction in reductions:
                        if reduction.selects:
                            reduction.take_columns(writer.m, row)
                    if self.noisy:
                        writer.forget_flags()
                    self._advance_inner()
                for reduction, address in zip(reductions, addresses, strict=True):
                    if reduction.zeros is not None:
                        writer.doubt(reduction.doubtful_columns(writer.m))
                    reduction.end_columns(writer.m, address)
            writer.advance(code.number(0), writer.kept, self.everything)
