"""Binds an expression to the shapes, strides and dtypes of the arrays it is applied to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np

from dask_marsched.kernels import numpy_backend
from dask_marsched.kernels.expression import (
    Expression,
    InputType,
    NotUnderstoodError,
    TypedExpression,
    TypedNode,
    typed,
)
from dask_marsched.kernels.loops import Nest, nest
from dask_marsched.kernels.operations import INDEXING, POWERS

#: An array's dtype, shape, strides, and whether its elements are aligned in memory (those received
#: from another worker often are not); or the type of a Python scalar.
Signature = tuple[np.dtype[Any], tuple[int, ...], tuple[int, ...], bool] | type

#: Greatest integer up to which all are doubles.
_MOST_EXACT = 2**53
_SCALARS = (bool, int, float, complex)
#: Operations of integers whose overflow the processor's flags do not show.
_OVERFLOWING = frozenset({"add", "subtract", "multiply", "negative", "absolute", "floor_divide"})
#: Operators whose warnings for scalars have another text ("in scalar divide").
_DIVISIONS = frozenset({"divide", "floor_divide", "remainder"})


def signature(values: Sequence[Any]) -> tuple[Signature, ...]:
    """Return the types and memory layouts of an expression's inputs.

    Raises NotUnderstoodError unless all are scalars or arrays of NumPy's own type.
    """
    found: list[Signature] = []
    for value in values:
        kind = type(value)
        if kind is np.ndarray:
            found.append((value.dtype, value.shape, value.strides, value.flags.aligned))
        elif kind in _SCALARS:
            found.append(kind)
        elif isinstance(value, np.generic):
            found.append((value.dtype, (), (), True))
        else:
            raise NotUnderstoodError(f"{kind.__name__} is left to NumPy")
    return tuple(found)


class KernelLayout(NamedTuple):
    """The properties of a bound expression that its kernel depends on."""

    #: ``"map"`` without reductions; ``"rows"`` if the innermost loop is reduced; ``"columns"`` if
    #: only outer loops are.
    mode: str
    #: By input: ``"c"`` contiguous in the innermost loop, ``"b"`` broadcast, ``"s"`` with a stride;
    #: all in capitals if the elements of any are not aligned.
    steps: str


@dataclass(frozen=True)
class BoundExpression:
    """An expression applied to arrays of certain shapes, strides and dtypes."""

    typed: TypedExpression
    shape: tuple[int, ...]  #: common shape of the inputs
    axes: frozenset[int]  #: reduced axes
    signatures: tuple[Signature, ...]  #: of the inputs
    order: tuple[int, ...]  #: axes of the results, from the outermost to the innermost in memory

    @property
    def expression(self) -> Expression:
        """The expression without dtypes."""
        return self.typed.source

    @cached_property
    def elements(self) -> int:
        """Number of elements of the common shape."""
        return prod(self.shape)

    @cached_property
    def result_shape(self) -> tuple[int, ...]:
        """Shape of the results, reduced axes with length 1."""
        return tuple(1 if axis in self.axes else n for axis, n in enumerate(self.shape))

    @cached_property
    def inputs(self) -> tuple[tuple[int, np.dtype[Any]], ...]:
        """Number and dtype of each input as it is read."""
        return tuple((n.param, n.dtype) for n in self.typed.nodes if n.op == "input")

    @cached_property
    def nest(self) -> Nest:
        """The loops: strides of the inputs, then of the results."""
        strides = [self.strides(number) for number, _ in self.inputs]
        results = [self._result_strides(dtype) for _, _, dtype in self.typed.outputs]
        counted = any(reduction in INDEXING for _, reduction, _ in self.typed.outputs)
        # along all axes, elements are counted in C order
        order = range(len(self.shape)) if counted and len(self.axes) > 1 else self.order
        return nest(self.shape, [*strides, *results], order, self.axes)

    @cached_property
    def layout(self) -> KernelLayout:
        """The properties that the kernel depends on."""
        loops = self.nest
        steps = ""
        for (_, dtype), strides in zip(self.inputs, loops.strides, strict=False):
            inner = strides[-1]
            steps += "b" if inner == 0 else "c" if inner == dtype.itemsize else "s"
        if not all(isinstance(found, type) or found[3] for found in self.signatures):
            steps = steps.upper()
        if not self.typed.reduced:
            return KernelLayout("map", steps)
        return KernelLayout("rows" if loops.inner_reduced else "columns", steps)

    @cached_property
    def row(self) -> int:
        """How many elements NumPy reduces as one row: those of the innermost reduced axes."""
        length = 1
        for axis in reversed(self.order):
            if self.shape[axis] > 1 and axis not in self.axes:
                break
            length *= self.shape[axis]
        return length

    def is_packed(self, output: int) -> bool:
        """Whether an output's values, before their reduction, fill memory as a new array does."""
        expression = self.expression
        node = expression.nodes[expression.origin(expression.outputs[output].node)]
        if node.op != "input":
            return True
        found = self.signatures[node.param]
        if isinstance(found, type) or not found[3]:
            return False
        step = found[0].itemsize
        for axis in reversed(self.order):
            if self.shape[axis] > 1 and self.strides(node.param)[axis] != step:
                return False
            step *= self.shape[axis]
        return True

    def strides(self, number: int) -> tuple[int, ...]:
        """Return an input's strides in bytes, 0 along axes that it is broadcast to."""
        found, dimensions = self.signatures[number], len(self.shape)
        if isinstance(found, type):
            return (0,) * dimensions
        _, shape, strides, _ = found
        missing = (0,) * (dimensions - len(shape))
        return missing + tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))

    def _result_strides(self, dtype: np.dtype[Any]) -> tuple[int, ...]:
        strides, step = [0] * len(self.shape), dtype.itemsize
        for axis in reversed(self.order):
            if axis not in self.axes:
                strides[axis] = step if self.shape[axis] > 1 else 0
                step *= self.shape[axis]
        return tuple(strides)

    def allocate(self) -> list[np.ndarray[Any, Any]]:
        """Return new arrays for the results, reduced axes with length 1."""
        shape = self.result_shape
        if self.order == tuple(range(len(shape))):
            return [np.empty(shape, dtype) for _, _, dtype in self.typed.outputs]
        ordered = tuple(shape[axis] for axis in self.order)
        back = tuple(int(axis) for axis in np.argsort(self.order))
        return [np.empty(ordered, dtype).transpose(back) for _, _, dtype in self.typed.outputs]

    def finish(self, results: list[np.ndarray[Any, Any]]) -> list[Any]:
        """Return results as NumPy does: without reduced axes, a single element as a scalar."""
        if not self.typed.reduced or self.expression.keepdims:
            return list(results)
        kept = tuple(n for axis, n in enumerate(self.shape) if axis not in self.axes)
        return [result.reshape(kept)[()] for result in results]

    def operands(self, values: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        """Return the inputs as arrays of the dtypes in which they are read; see `as_array`."""
        return [
            value if type(value) is np.ndarray else as_array(value, dtype)
            for value, dtype in ((values[number], dtype) for number, dtype in self.inputs)
        ]


def as_array(value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return a scalar as an array.

    Raises OverflowError or FloatingPointError if the dtype may have no such value.
    """
    if type(value) is int and dtype.kind in "fc" and abs(value) > _MOST_EXACT:
        raise OverflowError("rounded once or twice, as the operation may be")
    with np.errstate(all="raise"):
        return np.asarray(value, dtype)


def bind(expression: Expression, signatures: tuple[Signature, ...]) -> BoundExpression:
    """Bind an expression to arrays; raise NotUnderstoodError if NumPy has to evaluate it."""
    types: tuple[InputType, ...] = tuple(s if isinstance(s, type) else s[0] for s in signatures)
    shapes = [() if isinstance(s, type) else s[1] for s in signatures]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise NotUnderstoodError(str(error)) from None
    if 0 in shape or not shape:
        raise NotUnderstoodError("no elements, or a single one")
    if len(shape) > 16:
        raise NotUnderstoodError("more than 16 axes")
    axes: frozenset[int] = frozenset()
    if expression.reduced:
        named = range(len(shape)) if expression.axes is None else expression.axes
        if any(not 0 <= axis < len(shape) for axis in named) or len(set(named)) < len(named):
            raise NotUnderstoodError("axes that are not there")
        axes = frozenset(named)
        if any(o.reduction in INDEXING for o in expression.outputs) and not (
            len(axes) == 1 or len(axes) == len(shape)
        ):
            raise NotUnderstoodError("positions along several axes")
        if not axes:
            raise NotUnderstoodError("a reduction along no axis")
    _check_scalars(expression, shapes)
    known = typed(expression, types)
    made = BoundExpression(known, shape, axes, signatures, _order(expression, shape, signatures))
    _check_constants(made)
    return made


def _order(
    expression: Expression, shape: tuple[int, ...], signatures: Sequence[Signature]
) -> tuple[int, ...]:
    """Return the axes of the results, from the outermost to the innermost in memory.

    NumPy decides it operation by operation: a row plus a column has C order, even if the result is
    then multiplied with an array in Fortran order. The order of a sum's terms depends on it. So
    NumPy evaluates the expression on tiny arrays of the same layout.
    """
    try:
        with np.errstate(all="ignore"):
            found = numpy_backend.evaluate(expression.elementwise, [*map(_tiny, signatures)])
    except Exception as error:  # it will be raised for the data
        raise NotUnderstoodError(str(error)) from error
    if any(result.shape != tuple(min(n, 2) for n in shape) for result in found):
        raise NotUnderstoodError("results of different shapes")
    # a result may be an input, or a view of one: NumPy iterates as it lays out a new array
    strides = [np.equal(result, result).strides for result in found]
    long = [axis for axis, n in enumerate(shape) if n > 1]
    orders = {tuple(sorted(long, key=lambda axis: -own[axis])) for own in strides}
    if len(orders) > 1:
        raise NotUnderstoodError("results in different orders in memory")
    short = [axis for axis, n in enumerate(shape) if n == 1]
    return tuple(range(len(shape))) if orders == {tuple(long)} else (*short, *orders.pop())


def _tiny(found: Signature) -> Any:
    """Return an array of two elements along each axis at most, in the order of a given one."""
    if isinstance(found, type):
        return found(1)
    dtype, shape, strides, _ = found
    steps = sorted({abs(step) for step in strides if step})
    own = [dtype.itemsize << steps.index(abs(step)) if step else 0 for step in strides]
    values = np.ones(1 + sum(own) // dtype.itemsize, dtype)
    return np.ndarray([min(n, 2) for n in shape], dtype, values, 0, own)


def _check_scalars(expression: Expression, shapes: Sequence[tuple[int, ...]]) -> None:
    """Refuse scalars, or arrays, where NumPy does something else to them."""
    scalar: list[bool] = []
    for node in expression.nodes:
        own = [shapes[node.param] == ()] if node.op == "input" else [scalar[a] for a in node.args]
        scalar.append(all(own))
        if node.op in POWERS and scalar[-1]:
            # x**2 is x * x for an array, and C's pow for a scalar
            raise NotUnderstoodError("a power of a scalar")
        if node.op == "clip" and not all(scalar[arg] for arg in node.args[1:]):
            # it then decides by another comparison whether 0.0 and -0.0 stay
            raise NotUnderstoodError("bounds of clip that are arrays")


def _check_constants(made: BoundExpression) -> None:
    """Refuse values that are constant along an axis if NumPy treats them in a special way.

    NumPy reports an overflow of integers for scalars, not for arrays. It rounds products and
    absolute values of complex numbers in another way, and names scalars where it warns of a
    division. Its loop of powers takes short cuts for a constant exponent, and which elements share
    a loop depends on the layout.
    """
    axes = frozenset(axis for axis, length in enumerate(made.shape) if length > 1)
    constant: list[frozenset[int]] = []
    scalar: list[bool] = []
    nodes = made.typed.nodes
    for node in nodes:
        if node.op == "input":
            found, strides = made.signatures[node.param], made.strides(node.param)
            constant.append(frozenset(axis for axis in axes if not strides[axis]))
            scalar.append(isinstance(found, type) or not found[1])
            continue
        constant.append(axes.intersection(*(constant[arg] for arg in node.args)))
        scalar.append(all(scalar[arg] for arg in node.args))
        if scalar[-1] and node.dtype.kind in "iu" and node.op in _OVERFLOWING:
            raise NotUnderstoodError("integers that are scalars")
        if scalar[-1] and (node.op in _DIVISIONS or _is_of_complex(node, nodes)):
            raise NotUnderstoodError("complex numbers or divisions that are scalars")
        if node.op in POWERS:
            exponent = node.args[1]
            direct = nodes[exponent].op == "input" and constant[exponent] == axes
            if constant[exponent] and not direct:
                raise NotUnderstoodError("an exponent that is the same along an axis")


def _is_of_complex(node: TypedNode, nodes: Sequence[TypedNode]) -> bool:
    return node.op != "cast" and any(nodes[arg].dtype.kind == "c" for arg in node.args)
