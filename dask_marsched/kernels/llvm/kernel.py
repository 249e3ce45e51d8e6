"""Writes whole kernels: the loops around blocks of elements, and the stages within a block.

A kernel takes the addresses of the operands; the lengths of the loops, followed by those of NumPy's
row and of a part of it; the number of loops, and of those that are kept; the strides; working
space; and the addresses of the inner loops of NumPy that it calls. It returns the floating-point
flags that were raised, and `DOUBT` if NumPy has to decide about a result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from dask_marsched.kernels.backend import UnsupportedError
from dask_marsched.kernels.bound_expression import KernelLayout
from dask_marsched.kernels.expression import TypedExpression
from dask_marsched.kernels.llvm.code import BLOCK, Code, supported
from dask_marsched.kernels.llvm.folds import ReductionCode
from dask_marsched.kernels.llvm.functions import has_function, write_function
from dask_marsched.kernels.llvm.kernel_files import DOUBT
from dask_marsched.kernels.llvm.operations import is_doubtful
from dask_marsched.kernels.llvm.stages import stages
from dask_marsched.kernels.proof import FunctionClaim

#: The first entries of the list of functions: those that clear and test flags, and the flags.
_STATUS = 3
_MOST_LOOPS = 32


class Writer:
    """Writes one kernel without reductions; its parameters are those of `Key`.

    Both the class and `write` raise UnsupportedError if there is no kernel for the expression.
    """

    def __init__(
        self,
        expression: TypedExpression,
        layout: KernelLayout,
        exact: bool,
        trusted: tuple[FunctionClaim, ...],
    ) -> None:
        self.nodes, self.outputs = expression.nodes, expression.outputs
        self.layout = layout
        self.trusted = trusted
        self.plan = stages(expression, exact)
        self.inputs = [p for p, node in enumerate(self.nodes) if node.op == "input"]
        #: Loops of NumPy that are called, as in `Made`.
        self.externals: list[tuple[str, tuple[np.dtype[Any], ...]]] = []
        #: By output: the address for its values; the reduction that each value is joined with.
        self.targets: dict[int, Any] = {}
        self.running: dict[int, ReductionCode] = {}
        self.scratch = 0
        self.code = Code("kernel", 7)
        parameters = self.code.function.args
        self.pointers, self.shape, self.dimensions, self.kept = parameters[:4]
        self.strides, self.memory, self.functions = parameters[4:]
        self.index = self._reserve(8, _MOST_LOOPS)
        self.buffers = self._buffers()
        self.copies = self._copies()

    def _reserve(self, itemsize: int, length: int = BLOCK) -> Any:
        """Return the address of a new piece of working space."""
        address = self.code.add(self.memory, self.scratch)
        self.scratch += -(-itemsize * length // 64) * 64
        return address

    def _buffers(self) -> dict[int, Any]:
        """Return the addresses of buffers for nodes that a later stage needs."""
        found: dict[int, Any] = {}
        used: list[tuple[int, int, Any]] = []  # needed until, size of an element, address
        for position in sorted(self.plan.kept_until, key=lambda p: self.plan.stage[p]):
            size = self.nodes[position].dtype.itemsize
            now = self.plan.stage[position]
            free = next((u for u in used if u[0] < now and u[1] == size), None)
            if free is not None:
                used.remove(free)
            address = self._reserve(size) if free is None else free[2]
            found[position] = address
            used.append((self.plan.kept_until[position], size, address))
        return found

    def _copies(self) -> dict[int, Any]:
        """Return the addresses of aligned copies of inputs for NumPy's inner loops."""
        called = {
            arg
            for position, node in enumerate(self.nodes)
            if self.plan.code[position] is None
            for arg in node.args
        }
        return {
            position: self._reserve(self.nodes[position].dtype.itemsize)
            for k, position in enumerate(self.inputs)
            if self.layout.steps[k].isupper() and position in called
        }

    def write(self) -> str:
        """Return a module in LLVM's language."""
        code = self.code
        self.flags = code.variable(value=0)
        self._status(0)
        count = len(self.inputs) + len(self.outputs)
        self.bases = [
            code.variable(value=code.word(self.pointers, code.number(k))) for k in range(count)
        ]
        self.inner = code.add(self.dimensions, -1)
        self.length = code.word(self.shape, self.inner)
        self.steps = [self._stride(k, self.inner) for k in range(len(self.inputs))]
        with code.loop(_MOST_LOOPS) as d:
            code.store(code.pointer(self.index, np.dtype(np.int64)), d, code.number(0))
        self._loops()
        self._note_flags()
        return code.end(code.get(self.flags))

    def doubtful(self) -> bool:
        """Return `Made.doubtful`."""
        return any(
            is_doubtful(node, self.nodes[node.args[0]].dtype) for node in self.nodes if node.args
        )

    def _stride(self, operand: int, loop: Any) -> Any:
        first = self.code.multiply(self.dimensions, operand)
        return self.code.word(self.strides, self.code.add(first, loop))

    def _product(self, first: Any, last: Any) -> Any:
        """Return the number of elements of the loops from ``first`` up to before ``last``."""
        code, total = self.code, self.code.variable(value=1)
        with code.loop(last, start=first) as d:
            code.set(total, code.multiply(code.get(total), code.word(self.shape, d)))
        return code.get(total)

    def _advance(self, first: Any, last: Any, operands: range) -> None:
        """Move to the next element of the loops from ``first`` up to before ``last``."""
        code, int64 = self.code, np.dtype(np.int64)
        index = code.pointer(self.index, int64)
        running = code.variable(value=1)
        with code.loop(last, start=first) as number:
            d = code.at.sub(code.add(code.add(first, last), -1), number)  # the last one first
            carried = code.at.icmp_signed("!=", code.get(running), code.number(0))
            with code.when(carried):
                now = code.add(code.load(index, d, int64), 1)
                length = code.word(self.shape, d)
                over = code.at.icmp_signed("==", now, length)
                zero = code.number(0)
                code.store(index, d, code.at.select(over, zero, now))
                steps = code.at.select(over, code.at.sub(code.number(1), length), code.number(1))
                for k in operands:
                    code.raise_by(self.bases[k], code.multiply(self._stride(k, d), steps))
                code.set(running, code.at.zext(over, running.type.pointee))

    def _loops(self) -> None:
        code = self.code
        block: Any = BLOCK if self.plan.last else self.length
        with code.loop(self._product(code.number(0), self.kept)):
            with code.loop(self.length, step=block) as start:
                self.m = code.least(block, code.at.sub(self.length, start))
                for number, (position, _, dtype) in enumerate(self.outputs):
                    offset = code.multiply(start, dtype.itemsize)
                    base = code.get(self.bases[len(self.inputs) + number])
                    address = code.add(base, offset)
                    if supported(dtype):
                        self.targets[number] = code.pointer(address, dtype)
                    elif self.nodes[position].op == "input":
                        raise UnsupportedError(f"a copy of {dtype.name}")
                    else:  # NumPy's inner loop writes the result itself
                        self.buffers[position] = address
                self._block(start)
            self._advance(code.number(0), self.kept, range(len(self.bases)))

    def _function(self, number: int) -> Any:
        return self.code.word(self.functions, self.code.number(number))

    def _status(self, number: int) -> Any:
        return self.code.call_status(self._function(number), self._function(2))

    def _note_flags(self) -> None:
        """Record the flags that are raised."""
        code = self.code
        code.set(self.flags, code.at.or_(code.get(self.flags), self._status(1)))

    def _forget_flags(self) -> None:
        """Clear the flags if there are any."""
        raised = self.code.at.icmp_signed("!=", self._status(1), self.code.number(0))
        with self.code.when(raised):
            self._status(0)

    def _doubt(self, condition: Any) -> None:
        """Have NumPy decide about the results if a condition holds."""
        code = self.code
        found = code.at.select(condition, code.number(DOUBT), code.number(0))
        code.set(self.flags, code.at.or_(code.get(self.flags), found))

    def _block(self, start: Any) -> None:
        """Evaluate ``m`` elements of the innermost loop, from ``start`` on."""
        self.places: dict[int, tuple[Any, Any]] = {}  # address and stride
        for k, position in enumerate(self.inputs):
            size = self.nodes[position].dtype.itemsize
            step = {"c": size, "s": self.steps[k], "b": 0}[self.layout.steps[k].lower()]
            offset = self.code.multiply(start, step)
            self.places[position] = self.code.add(self.code.get(self.bases[k]), offset), step
        for position, address in self.copies.items():
            source = self._source(position)
            target = self.code.pointer(address, self.nodes[position].dtype)
            # a broadcast input stays so: NumPy's loop of powers takes short cuts by the stride
            _, step = self.places[position]
            with self.code.loop(1 if step == 0 else self.m) as i:
                self.code.store(target, i, source(i))
        for stage in range(self.plan.last + 1):
            if stage % 2:
                self._calls(stage)
            else:
                self._loop(stage)

    def _calls(self, stage: int) -> None:
        # NumPy's inner loops may clear the flags, so these are recorded first
        self._note_flags()
        for position, node in enumerate(self.nodes):
            if self.plan.stage[position] != stage:
                continue
            dtypes = (*(self.nodes[arg].dtype for arg in node.args), node.dtype)
            external = node.op, dtypes
            if external not in self.externals:
                self.externals.append(external)
            number = _STATUS + 2 * self.externals.index(external)
            function, data = self._function(number), self._function(number + 1)
            places = [self._aligned(p) for p in (*node.args, position)]
            if has_function(node, dtypes[:-1], self.trusted):
                with self.code.when(self._by_function(position)):
                    self._status(0)
                    self.code.call_loop(function, data, self.m, places)
            else:
                self.code.call_loop(function, data, self.m, places)
            self._note_flags()

    def _by_function(self, position: int) -> Any:
        """Evaluate an operation by our function; return whether NumPy has to do it again."""
        code, node = self.code, self.nodes[position]
        sources = [self._source(arg) for arg in node.args]
        target = code.pointer(self.buffers[position], node.dtype)
        size = ir.IntType(8 * node.dtype.itemsize)
        doubtful = code.variable(size, ir.Constant(size, 0))
        with code.loop(self.m) as i:
            operands = [source(i) for source in sources]
            value, unfit = write_function(code, node, operands)
            code.store(target, i, value)
            for access in (*operands, code.at.block.instructions[-1]):
                code.keep_apart(access)
            code.set(doubtful, code.at.or_(code.get(doubtful), code.at.zext(unfit, size)))
        return code.at.icmp_unsigned("!=", code.get(doubtful), ir.Constant(size, 0))

    def _place(self, position: int) -> tuple[Any, Any]:
        """Return address and stride of a node's elements in the block."""
        if position in self.places:
            return self.places[position]
        return self.buffers[position], self.nodes[position].dtype.itemsize

    def _aligned(self, position: int) -> tuple[Any, Any]:
        """Return the same of elements that are aligned, for NumPy's inner loops."""
        address, step = self._place(position)
        if position in self.copies:
            return self.copies[position], 0 if step == 0 else self.nodes[position].dtype.itemsize
        return address, step

    def _loop(self, stage: int) -> None:
        own = {
            p: code
            for p, code in enumerate(self.plan.code)
            if code is not None and self.plan.stage[p] == stage
        }
        last = stage == self.plan.last
        outputs = [
            (number, position)
            for number, (position, _, _) in enumerate(self.outputs)
            if last and (number in self.targets or number in self.running)
        ]
        if not own and not outputs:
            return
        read = {arg for p in own for arg in self.nodes[p].args} | {p for _, p in outputs}
        sources = {p: self._source(p) for p in sorted(read - own.keys())}
        sinks = {
            p: self.code.pointer(self.buffers[p], self.nodes[p].dtype)
            for p in own
            if p in self.plan.kept_until
        }
        with self.code.loop(self.m) as i:
            values: dict[int, Any] = {p: read_at(i) for p, read_at in sources.items()}
            for p, write in own.items():
                values[p] = write(self.code, *(values[arg] for arg in self.nodes[p].args))
                if p in sinks:
                    self.code.store(sinks[p], i, values[p])
            for number, p in outputs:
                if number in self.targets:
                    self.code.store(self.targets[number], i, values[p])
                else:
                    reduction = self.running[number]
                    self.code.store(reduction.more, i, reduction.joined(values[p], i))

    def _source(self, position: int) -> Any:
        """Return a function that reads an element of a node in a loop."""
        node, code = self.nodes[position], self.code
        dtype = node.dtype
        if not supported(dtype):
            raise UnsupportedError(f"{dtype.name} in compiled code")
        address, step = self._place(position)
        if step == 0:
            value = code.load(code.pointer(address, dtype), code.number(0), dtype)
            return lambda _: value
        if step == dtype.itemsize:
            pointer = code.pointer(address, dtype)
            return lambda i: code.load(pointer, i, dtype)

        def strided(i: Any) -> Any:
            place = code.add(address, code.multiply(i, step))
            return code.load(code.pointer(place, dtype), code.number(0), dtype)

        return strided
