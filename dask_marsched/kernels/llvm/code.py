"""Writes LLVM's intermediate code: variables, loops, conditions, and memory by address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import ir

I1, I8, I32, I64 = (ir.IntType(n) for n in (1, 8, 32, 64))
#: Elements of a block, chosen so that a few buffers of 8 bytes each fit into 32 KiB.
BLOCK = 1024
_BYTES = I8.as_pointer()


def supported(dtype: np.dtype[Any]) -> bool:
    """Whether compiled code can compute with a dtype; NumPy's inner loops handle others."""
    return dtype.kind in "biu" or (dtype.kind == "f" and dtype.itemsize in (4, 8))


def value_type(dtype: np.dtype[Any]) -> Any:
    """Return the type in which a value of a dtype is computed."""
    return I1 if dtype.kind == "b" else memory_type(dtype)


def memory_type(dtype: np.dtype[Any]) -> Any:
    """Return the type of a value of a dtype in memory."""
    if dtype.kind == "f":
        return ir.FloatType() if dtype.itemsize == 4 else ir.DoubleType()
    return ir.IntType(8 * dtype.itemsize)


class Code:
    """Writes the code of a function, whose parameters are 64-bit integers.

    With ``module``, only other functions in that module can call it.
    """

    def __init__(self, name: str, parameters: int, module: Any = None, result: Any = I64) -> None:
        self.module = ir.Module(name=name) if module is None else module
        self.function = ir.Function(
            self.module, ir.FunctionType(result, [I64] * parameters), name=name
        )
        if module is not None:
            self.function.linkage = "internal"
        self._entry = self.function.append_basic_block("entry")
        self.at = ir.IRBuilder(self.function.append_basic_block("start"))

    def end(self, result: Any) -> str:
        """Have the function return a value, and return the module's text."""
        self.at.ret(result)
        ir.IRBuilder(self._entry).branch(self.function.basic_blocks[1])
        return str(self.module)

    def number(self, value: Any) -> Any:
        """Return a constant for a Python integer; code is returned as it is."""
        return ir.Constant(I64, value) if isinstance(value, int) else value

    def add(self, a: Any, b: Any) -> Any:
        """Return a sum."""
        return self.at.add(self.number(a), self.number(b))

    def multiply(self, a: Any, b: Any) -> Any:
        """Return a product."""
        return self.at.mul(self.number(a), self.number(b))

    def least(self, a: Any, b: Any) -> Any:
        """Return the smaller number."""
        a, b = self.number(a), self.number(b)
        return self.at.select(self.at.icmp_signed("<", a, b), a, b)

    def variable(self, kind: Any = I64, value: Any = None) -> Any:
        """Return a new variable."""
        made = ir.IRBuilder(self._entry).alloca(kind)
        if value is not None:
            self.set(made, value)
        return made

    def get(self, variable: Any) -> Any:
        """Return the value of a variable."""
        return self.at.load(variable)

    def set(self, variable: Any, value: Any) -> None:
        """Give a value to a variable."""
        self.at.store(self.number(value), variable)

    def raise_by(self, variable: Any, value: Any) -> None:
        """Add a number to a variable."""
        self.set(variable, self.add(self.get(variable), value))

    @contextmanager
    def loop(self, stop: Any, start: Any = 0, step: Any = 1) -> Iterator[Any]:
        """Run the code inside for each number from ``start`` up to before ``stop``."""
        counter = self.variable(I64, start)
        stop = self.number(stop)
        with self.repeat(lambda: self.at.icmp_signed("<", self.get(counter), stop)):
            now = self.get(counter)
            yield now
            self.set(counter, self.add(now, step))

    @contextmanager
    def repeat(self, condition: Callable[[], Any]) -> Iterator[None]:
        """Run the code inside while a condition holds, which is evaluated before each turn."""
        head, body, after = (self.function.append_basic_block(n) for n in ("head", "body", "after"))
        self.at.branch(head)
        self.at.position_at_end(head)
        self.at.cbranch(condition(), body, after)
        self.at.position_at_end(body)
        yield
        self.at.branch(head)
        self.at.position_at_end(after)

    @contextmanager
    def when(self, condition: Any) -> Iterator[None]:
        """Run the code inside if a condition holds."""
        body, after = (self.function.append_basic_block(n) for n in ("then", "after"))
        self.at.cbranch(condition, body, after)
        self.at.position_at_end(body)
        yield
        self.at.branch(after)
        self.at.position_at_end(after)

    def halved(self, vector: Any, join: Callable[[Any, Any], Any], neighbours: bool) -> Any:
        """Return the reduction of a vector: its neighbours, or its halves, are joined first."""
        width = vector.type.count
        while width > 1:
            width //= 2
            none = ir.Constant(vector.type, ir.Undefined)
            numbers = np.arange(2 * width)
            places = numbers.reshape((2, width), order="F" if neighbours else "C").tolist()
            kind = ir.VectorType(I32, width)
            masks = [ir.Constant(kind, list(map(I32, own))) for own in places]
            vector = join(*(self.at.shuffle_vector(vector, none, mask) for mask in masks))
        return self.at.extract_element(vector, I32(0))

    def pointer(self, address: Any, dtype: np.dtype[Any]) -> Any:
        """Return a pointer to values of a dtype."""
        return self.at.inttoptr(self.number(address), memory_type(dtype).as_pointer())

    def load(self, pointer: Any, index: Any, dtype: np.dtype[Any]) -> Any:
        """Return an element of an array, aligned or not."""
        value = self.at.load(self.at.gep(pointer, [self.number(index)]), align=1)
        return self.at.icmp_unsigned("!=", value, I8(0)) if dtype.kind == "b" else value

    def store(self, pointer: Any, index: Any, value: Any) -> None:
        """Set an element of an array."""
        if value.type == I1:
            value = self.at.zext(value, I8)
        self.at.store(value, self.at.gep(pointer, [self.number(index)]))

    def keep_apart(self, access: Any, kind: str = "noalias") -> None:
        """Promise that a load or store does not touch tables, which are marked ``alias.scope``.

        Without this LLVM does not turn loops with look-ups into vector code.
        """
        domain = self.module.add_metadata(["kernel"])
        scope = self.module.add_metadata(["tables", domain])
        access.set_metadata(kind, self.module.add_metadata([scope]))

    def word(self, address: Any, index: Any) -> Any:
        """Return an element of a list of 64-bit integers."""
        return self.load(self.pointer(address, np.dtype(np.int64)), index, np.dtype(np.int64))

    def call_loop(self, function: Any, data: Any, length: Any, places: list[Any]) -> None:
        """Call an inner loop of NumPy with the address and stride of each operand."""
        count = len(places)
        entry = ir.IRBuilder(self._entry)
        pointers, strides = (entry.alloca(t, count) for t in (_BYTES, I64))
        lengths = entry.alloca(I64)
        self.at.store(length, lengths)
        for k, (address, stride) in enumerate(places):
            index = [ir.Constant(I32, k)]
            pointer = self.at.inttoptr(self.number(address), _BYTES)
            self.at.store(pointer, self.at.gep(pointers, index))
            self.at.store(self.number(stride), self.at.gep(strides, index))
        words = I64.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [_BYTES.as_pointer(), words, words, _BYTES])
        target = self.at.inttoptr(function, kind.as_pointer())
        data = self.at.inttoptr(data, _BYTES)
        self.at.call(target, [pointers, lengths, strides, data])

    def call_status(self, function: Any, mask: Any) -> Any:
        """Call a C function of the floating-point flags."""
        target = self.at.inttoptr(function, ir.FunctionType(I32, [I32]).as_pointer())
        return self.at.zext(self.at.call(target, [self.at.trunc(mask, I32)]), I64)
