"""Evaluates parts of a task as one expression, and puts the results into Dask's form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from dask.array.reductions import numel

from dask_marsched.host.kernels.piecewise_sums import PIECE
from dask_marsched.host.kernels.rules import RecognizedReduction, unwrapped
from dask_marsched.kernels.bound_expression import Signature, signature
from dask_marsched.kernels.expression import Expression, Node, NotUnderstoodError, Output, typed
from dask_marsched.kernels.numpy_backend import OwnedValues

#: `dask_marsched.kernels.evaluator.Kernels.evaluate`.
Evaluate = Callable[..., list[Any]]

_NEUTRAL = {"sum": 0, "prod": 1}
#: Operations for which a kernel pays even if they are alone.
_SLOW_IN_NUMPY = frozenset({"where", "clip", "pow", "power"})

#: Operations that take less time than writing their result to memory and reading it again.
_CHEAP = """
    absolute add bitwise_and bitwise_or bitwise_xor cast clip clip_max clip_min conjugate copysign
    deg2rad degrees divide enforce equal fabs greater greater_equal input invert isfinite
    isinf isnan less less_equal logical_and logical_not logical_or logical_xor maximum minimum
    multiply negative not_equal positive rad2deg radians reciprocal sign signbit sqrt square
    subtract where
"""
_CHEAP_OPERATIONS = frozenset(_CHEAP.split())

#: Kinds of arrays that a part remembers.
_MOST_FORMS = 64


class FusedPart(Protocol):
    """Evaluates a part of a task; ``worthwhile`` if a kernel can be faster than NumPy."""

    worthwhile: bool
    expression: Expression  #: The expression, or the first of two.

    def run(self, values: list[Any], task: Any, evaluate: Evaluate) -> Any:
        """Return the result for inputs that are NumPy's arrays or scalars.

        ``task`` is the task of the last step. The list of inputs may be changed.
        Raises a NotUnderstoodError if the part has to be run as in Dask; the list still has the
        inputs then.
        """
        ...


class Elementwise:
    """An expression without a reduction."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.expression = Expression(tuple(nodes), (Output(len(nodes) - 1),))
        own = [node.op for node in nodes if node.op != "input"]
        self.worthwhile = len(own) > 1 or own[0] in _SLOW_IN_NUMPY

    def run(self, values: list[Any], task: Any, evaluate: Evaluate) -> Any:
        """See `FusedPart.run`."""
        return evaluate(self.expression, values)[0]


class _Reduced:
    """The base class of reductions."""

    expression: Expression
    whole: Expression  #: As `expression`, for values without NaN.
    literals: list[Any]  #: Inputs of `expression` after the values.

    def __init__(self, nodes: Sequence[Node], value: int, found: RecognizedReduction) -> None:
        self.nodes, self.value, self.found = tuple(nodes), value, found
        self.elementwise = Expression(self.nodes, (Output(value),))
        self._empty = lru_cache(_MOST_FORMS)(self._new_empty)

    def chosen(self, values: list[Any]) -> Expression:
        """Return the expression for inputs of these types, to which literals are appended.

        As in NumPy, integers are neither searched for NaN nor copied.
        """
        if not self.literals:
            return self.expression
        if self.empty(values).dtype.kind in "biu":
            return self.whole
        node = self.nodes[self.elementwise.origin(self.value)]
        if node.op == "input" and _is_constant_along_an_axis(values[node.param]):
            raise NotUnderstoodError("a copy of an array that is constant along an axis")
        values += self.literals
        return self.expression

    def reducing(
        self, nodes: Sequence[Node], outputs: Sequence[Output], axes: tuple[int, ...] | None
    ) -> Expression:
        return Expression(tuple(nodes), tuple(outputs), axes, self.found.keepdims)

    def empty(self, values: list[Any]) -> np.ndarray[Any, Any]:
        """Return an array with shape and dtype of the reduced one, but arbitrary elements."""
        return self._empty(signature(values))

    def _new_empty(self, found: tuple[Signature, ...]) -> np.ndarray[Any, Any]:
        try:
            shape = np.broadcast_shapes(*(() if isinstance(s, type) else s[1] for s in found))
        except ValueError as error:  # the operation itself says it in other words
            raise NotUnderstoodError(str(error)) from None
        types = tuple(s if isinstance(s, type) else s[0] for s in found)
        dtype = typed(self.elementwise, types).outputs[0][2]
        if 0 in shape:
            raise NotUnderstoodError("no elements")
        return np.broadcast_to(np.empty((), dtype), shape)


class Plain(_Reduced):
    """A reduction that returns an array."""

    def __init__(self, nodes: Sequence[Node], value: int, found: RecognizedReduction) -> None:
        super().__init__(nodes, value, found)
        more, kept, self.literals = _without_nan(nodes, value, found)
        output = Output(kept, found.kind, found.dtype)
        self.expression = self.reducing(more, [output], found.axes)
        self.whole = self.reducing(nodes, [output._replace(node=value)], found.axes)
        self.worthwhile = self.expression.operations > 1

    def run(self, values: list[Any], task: Any, evaluate: Evaluate) -> Any:
        """See `FusedPart.run`."""
        return evaluate(self.chosen(values), values)[0]


class _Sums(_Reduced):
    """Sums, with the number of elements in each."""

    worthwhile = True

    def __init__(self, nodes: Sequence[Node], value: int, found: RecognizedReduction) -> None:
        super().__init__(nodes, value, found)
        more, summed, self.literals = _without_nan(nodes, value, found)
        # halves may overflow, of which NumPy warns each time
        is_half = self.count_dtype is not None and np.dtype(self.count_dtype).char == "e"
        self._count = self._new_count if is_half else lru_cache(_MOST_FORMS)(self._new_count)
        self.expression = self._summing(more, summed)
        self.whole = self._summing(nodes, value)

    #: Dtype of the number of elements; None for NumPy's choice.
    count_dtype: str | None = None

    def _summing(self, nodes: Sequence[Node], summed: int) -> Expression:
        nodes, outputs = [*nodes], [Output(summed, "sum", self.found.dtype)]
        if self.found.counts:
            nodes += [Node("isnan", (self.value,)), Node("invert", (len(nodes),))]
            outputs.append(Output(len(nodes) - 1, "sum", self.count_dtype))
        return self.reducing(nodes, outputs, self.found.axes)

    def totals(
        self, values: list[Any], evaluate: Evaluate, known: dict[int, Any] | None = None
    ) -> tuple[Any, Any]:
        """Return the sums, and the number of elements in each. Appends to the values."""
        # before the sums, as in Dask: either may warn
        count: Any = None if self.found.counts else self._count(self.empty(values).shape)
        total, *counted = evaluate(self.chosen(values), values, known)
        if counted:
            return total, _stored_once(counted[0])
        # a caller may write to the array that it gets
        shared = not isinstance(count, np.ndarray) or not count.flags.writeable
        return total, count if shared else count.copy()

    def _new_count(self, shape: tuple[int, ...]) -> Any:
        named = {} if self.count_dtype is None else {"dtype": np.dtype(self.count_dtype)}
        x = np.broadcast_to(np.empty(()), shape)
        return numel(x, axis=self.found.axes, keepdims=self.found.keepdims, **named)


class Mean(_Sums):
    """The first stage of a mean."""

    def __init__(self, nodes: Sequence[Node], value: int, found: RecognizedReduction) -> None:
        self.count_dtype = found.dtype
        super().__init__(nodes, value, found)
        self.worthwhile = self.expression.operations > 1

    def run(self, values: list[Any], task: Any, evaluate: Evaluate) -> Any:
        """See `FusedPart.run`."""
        total, count = self.totals(values, evaluate)
        return {"n": count, "total": total}


class Moment(_Sums):
    """The first stage of a variance: a mean, and the sum of squared deviations from it."""

    def __init__(self, nodes: Sequence[Node], value: int, found: RecognizedReduction) -> None:
        super().__init__(nodes, value, found)
        inputs, mean = self.elementwise.inputs, len(nodes)
        more = [
            *nodes,
            Node("input", (), inputs),
            Node("subtract", (value, mean)),
            Node("input", (), inputs + 1),
            Node("pow", (mean + 1, mean + 2), 2),
        ]
        more, squares, self.more_literals = _without_nan(more, len(more) - 1, found)
        self.squares = self.reducing(more, [Output(squares, "sum", found.dtype)], found.axes)
        #: Reduces values that were computed before, if computing them twice takes longer.
        self._kept: Moment | None = None
        if not all(n.op in _CHEAP_OPERATIONS or (n.op == "pow" and n.param) for n in self.nodes):
            self._kept = Moment([Node("input", (), 0)], 0, found)

    def run(self, values: list[Any], task: Any, evaluate: Evaluate) -> Any:
        """See `FusedPart.run`."""
        x = self.empty(values)
        if x.dtype.kind not in "biuf":
            raise NotUnderstoodError("moments of complex numbers")
        if not self.found.keepdims and self.found.axes is not None:
            raise NotUnderstoodError("a mean that cannot be broadcast")
        if self._kept is not None:
            # the values are gone if this raises later
            self._kept.check(x.dtype, x.ndim)
            kept = OwnedValues(evaluate(self.elementwise, values))
            return self._kept.run(kept, task, evaluate)
        # values that NumPy computes for the sum are used again for the squares
        known: dict[int, Any] = {self.value: None}
        total, count = self.totals([*values], evaluate, known)
        is_shared = not self.found.counts or not any(count.strides)
        count = self._whole(count) if is_shared else count.astype(np.int64)
        # the mean lies in memory as it does in Dask, whose counts lie in C order
        divisor = count if total.flags.c_contiguous else np.ascontiguousarray(count)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = total / divisor
        values += [mean, 2, *self.more_literals]
        squares = evaluate(self.squares, values, known)[0]
        return {"total": total, "n": count, "M": np.stack([squares], axis=-1)}

    def check(self, dtype: np.dtype[Any], ndim: int) -> None:
        """Raise a NotUnderstoodError if arrays of this kind cannot be reduced."""
        typed(self.expression, (dtype, *map(type, self.literals)))
        axes = range(ndim) if self.found.axes is None else self.found.axes
        if not axes or len(set(axes)) < len(axes) or any(axis >= ndim for axis in axes):
            raise NotUnderstoodError("axes that are not there, or none")

    @staticmethod
    def _whole(count: Any) -> Any:
        """Return a count that all sums share as an integer, repeated as Dask's counts are."""
        if not isinstance(count, np.ndarray) or not count.size:
            return count.astype(np.int64)
        number = count[(slice(0, 1),) * count.ndim].astype(np.int64)
        return np.broadcast_to(number.reshape(()), count.shape)


class Arg(_Reduced):
    """The first stage of an argmin or argmax: the least or greatest element, and its index."""

    worthwhile = True

    def __init__(self, nodes: Sequence[Node], value: int, found: RecognizedReduction) -> None:
        super().__init__(nodes, value, found)
        outputs = (Output(value, found.kind), Output(value, f"arg{found.kind}"))
        self.expression = self.reducing(nodes, outputs, None)
        self.along = self.reducing(nodes, outputs, (found.axes or (0,))[:1])

    def run(self, values: list[Any], task: Any, evaluate: Evaluate) -> Any:
        """See `FusedPart.run`."""
        x = self.empty(values)
        axes = self.found.axes or ()
        everywhere = len(axes) == x.ndim or x.ndim == 1
        least, place = evaluate(self.expression if everywhere else self.along, values)
        # Dask's own function makes its record of these results
        function, _, _ = unwrapped(task.func, {})
        *_, axis, offsets = task.args
        return function(lambda *_, **__: least, _named(place, self.found.kind), x, axis, offsets)


def _is_constant_along_an_axis(value: Any) -> bool:
    """Whether an array repeats its elements along an axis, without memory for each."""
    array = np.asarray(value)
    return any(n > 1 and not step for n, step in zip(array.shape, array.strides, strict=True))


def _stored_once(count: Any) -> Any:
    """Return counts without memory for each if all are equal, as where no element is NaN."""
    if not isinstance(count, np.ndarray) or not count.flags.c_contiguous or count.size < 2:
        return count
    flat = count.reshape(-1)
    first = flat[0]
    pieces = range(0, flat.size, PIECE)
    if flat[-1] != first or any((flat[n : n + PIECE] != first).any() for n in pieces):
        return count
    return np.broadcast_to(first, count.shape)


def _named(place: Any, kind: str) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        return place

    function.__name__ = f"arg{kind}"
    return function


def _without_nan(
    nodes: Sequence[Node], value: int, found: RecognizedReduction
) -> tuple[list[Node], int, list[Any]]:
    """Replace NaN in a value, if it is skipped; return the nodes, the value, further inputs."""
    if not found.skips_nan:
        return list(nodes), value, []
    inputs = Expression(tuple(nodes), (Output(value),)).inputs
    first = len(nodes)
    more = [
        *nodes,
        Node("isnan", (value,)),
        Node("input", (), inputs),
        Node("where", (first, first + 1, value)),
    ]
    return more, first + 2, [_NEUTRAL[found.kind]]


FORMS: dict[str, Callable[[Sequence[Node], int, RecognizedReduction], Any]] = {
    "plain": Plain,
    "mean": Mean,
    "moment": Moment,
    "arg": Arg,
}
