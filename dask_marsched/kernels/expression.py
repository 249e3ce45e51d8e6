"""Describes expressions: operations on each element of some arrays, and reductions after them.

An expression is a list of nodes in the order of their evaluation, without dtypes. `typed` adds the
dtypes that NumPy gives to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from dask_marsched.kernels.operations import (
    ACCUMULATING,
    CASTS,
    INDEXING,
    SELECTING,
    UFUNCS,
    arity,
)

#: The type of an operand in NumPy's promotion: a dtype, or the type of a Python scalar.
InputType = np.dtype[Any] | type

_BOOL = np.dtype(bool)
#: Supported kinds of dtypes: bool, integers, floats, complex numbers.
KINDS = "biufc"
#: Operations that NumPy's ``**`` uses instead of a power of floats or complex numbers, by type and
#: value of an exponent that is a Python scalar (``fast_scalar_power`` in NumPy's number.c).
_SHORT_CUTS: dict[tuple[Any, Any], str] = {
    (int, 2): "square",
    (int, -1): "reciprocal",
    (float, 0.5): "sqrt",
}
#: Operations that have the dtypes and, if no operand is out of range, the results of a ufunc.
_LIKE_UFUNCS = {"pow": "power", "clip_min": "maximum", "clip_max": "minimum"}
MOST_MULTIPLIED = 4  #: The largest exponent that a kernel may replace by multiplications


class NotUnderstoodError(Exception):
    """The caller has to evaluate an expression, or its use with certain dtypes, with NumPy."""


class Node(NamedTuple):
    """An operation on the nodes at the positions ``args``."""

    op: str  #: ``"input"``, or the name of an operation
    args: tuple[int, ...] = ()
    #: The number of an input, the dtype of a cast, the exponent of a power if it is a Python
    #: scalar; else None.
    param: Any = None


class Output(NamedTuple):
    """A result: a node, its reduction if any, and the dtype of that (None for NumPy's choice)."""

    node: int
    reduction: str | None = None
    dtype: str | None = None


@dataclass(frozen=True)
class Expression:
    """A fused expression; raises NotUnderstoodError if it is not well-formed."""

    nodes: tuple[Node, ...]  #: operands come before the nodes that use them
    outputs: tuple[Output, ...]  #: either all are reduced, or none is
    axes: tuple[int, ...] | None = None  #: reduced axes, from 0; None for all of them
    keepdims: bool = False  #: whether reduced axes are kept with length 1

    def __post_init__(self) -> None:
        for position, node in enumerate(self.nodes):
            if any(not 0 <= arg < position for arg in node.args):
                raise NotUnderstoodError(f"{node} comes before its operands")
            if node.op != "input" and len(node.args) != arity(node.op):
                raise NotUnderstoodError(f"{node} has the wrong number of operands")
        if len({output.reduction is None for output in self.outputs}) != 1:
            raise NotUnderstoodError("either all outputs are reduced, or none")

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.nodes, self.outputs, self.axes, self.keepdims))

    @property
    def reduced(self) -> bool:
        """Whether the outputs are reduced."""
        return self.outputs[0].reduction is not None

    @property
    def operations(self) -> int:
        """Number of operations, including reductions."""
        inputs = sum(node.op == "input" for node in self.nodes)
        return len(self.nodes) - inputs + (len(self.outputs) if self.reduced else 0)

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return 1 + max((node.param for node in self.nodes if node.op == "input"), default=-1)

    @cached_property
    def elementwise(self) -> Expression:
        """The expression without its reductions."""
        return Expression(self.nodes, tuple(Output(output.node) for output in self.outputs))

    @cached_property
    def reduces_inputs(self) -> bool:
        """Whether a value that is reduced is an input, whose layout NumPy's sums depend on."""
        return any(self.nodes[self.origin(output.node)].op == "input" for output in self.outputs)

    def origin(self, position: int) -> int:
        """Return the node that a node's value is, but for casts, which may return their operand."""
        while self.nodes[position].op in CASTS:
            (position,) = self.nodes[position].args
        return position

    def text(self) -> str:
        """Return the expression in Python's notation, its inputs as a, b, c..."""
        return "; ".join(
            _reduced_text(output, self.axes, _text(self.nodes, output.node))
            for output in self.outputs
        )


_INFIX = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "floor_divide": "//",
    "remainder": "%", "pow": "**", "less": "<", "less_equal": "<=", "greater": ">",
    "greater_equal": ">=", "equal": "==", "not_equal": "!=", "bitwise_and": "&",
    "bitwise_or": "|", "bitwise_xor": "^",
}  # fmt: skip
_LONGEST = 160


def _text(nodes: tuple[Node, ...], position: int) -> str:
    node = nodes[position]
    if node.op == "input":
        return chr(ord("a") + node.param) if node.param < 26 else f"x{node.param}"
    args = [_text(nodes, arg) for arg in node.args]
    if node.op in ("pow", "power") and node.param is not None:
        return f"{args[0]}**{node.param}"
    if node.op in _INFIX:
        found = f"({args[0]} {_INFIX[node.op]} {args[1]})"
    elif node.op in CASTS:
        found = args[0] if node.op == "enforce" else f"{args[0]}.astype({node.param})"
    else:
        found = f"{node.op}({', '.join(args)})"
    return found if len(found) <= _LONGEST else found[: _LONGEST - 3] + "..."


def _reduced_text(output: Output, axes: tuple[int, ...] | None, text: str) -> str:
    if output.reduction is None:
        return text
    return f"{output.reduction}({text}{'' if axes is None else f', axis={axes}'})"


class TypedNode(NamedTuple):
    """A `Node` whose operands have the dtypes that it needs; ``dtype`` is its result's."""

    op: str
    args: tuple[int, ...]
    param: Any
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class TypedExpression:
    """An expression with NumPy's dtypes; casts are nodes of their own."""

    nodes: tuple[TypedNode, ...]
    outputs: tuple[tuple[int, str | None, np.dtype[Any]], ...]  #: position, reduction, dtype
    converted: tuple[bool, ...]  #: by output, whether NumPy's reduction would convert the values
    source: Expression
    types: tuple[InputType, ...]  #: of the inputs

    @property
    def reduced(self) -> bool:
        """Whether the outputs are reduced."""
        return self.source.reduced


class _Typing:
    """Gives dtypes to the nodes of an expression, in their order."""

    def __init__(self, types: tuple[InputType, ...]) -> None:
        self.types = types
        self.nodes: list[TypedNode] = []
        self._known: dict[TypedNode, int] = {}
        #: By position in the expression: the position here, -1 for Python scalars.
        self.places: list[int] = []
        self.weak: dict[int, int] = {}  #: Numbers of the inputs that are Python scalars

    def add(self, node: TypedNode) -> int:
        """Return the position of a node, which is added if it is new."""
        if node not in self._known:
            self._known[node] = len(self.nodes)
            self.nodes.append(node)
        return self._known[node]

    def take(self, position: int, node: Node) -> None:
        """Type one node."""
        if node.op == "input":
            found = self.types[node.param]
            if isinstance(found, type):
                self.weak[position] = node.param
                self.places.append(-1)
            else:
                _check(found)
                self.places.append(self.add(TypedNode("input", (), node.param, found)))
            return
        wanted, result = self._resolve(node)
        op, args = node.op, node.args
        short = self._short_cut(node) if op == "pow" else None
        if op == "pow" and result.kind == "c" and args[1] in self.weak and node.param is None:
            raise NotUnderstoodError("a power of complex numbers whose short cut is not known")
        if short is not None:
            self.places.append(self.add(TypedNode(short, (self.places[args[0]],), None, result)))
            return
        # the exponent of a power stays an operand: backends decide whether they use the parameter
        op = _LIKE_UFUNCS.get(op, op)
        operands = tuple(self.cast(arg, dtype) for arg, dtype in zip(args, wanted, strict=True))
        if op in CASTS:
            self.places.append(operands[0])
            return
        if op == "clip":
            self.places.append(self._clip(operands, result))
            return
        param = node.param if op == "power" else None
        self.places.append(self.add(TypedNode(op, operands, param, result)))

    def _short_cut(self, node: Node) -> str | None:
        """Return the operation that NumPy's operator uses instead of a power, if any."""
        base, exponent = node.args
        if base in self.weak or exponent not in self.weak:
            return None
        if self.nodes[self.places[base]].dtype.kind not in "fc":
            return None
        return _SHORT_CUTS.get((self.types[self.weak[exponent]], node.param))

    def _clip(self, operands: tuple[int, ...], dtype: np.dtype[Any]) -> int:
        # As NumPy's clip: a value equal to a bound stays (-0.0 and 0.0 differ), a bound that is
        # NaN is the result, and the upper bound wins if the lower one is greater.
        value, *bounds = operands
        for compare, bound in zip(("greater_equal", "less_equal"), bounds, strict=True):
            kept = self.add(TypedNode(compare, (value, bound), None, _BOOL))
            if dtype.kind == "f":
                nan = self.add(TypedNode("isnan", (value,), None, _BOOL))
                kept = self.add(TypedNode("bitwise_or", (kept, nan), None, _BOOL))
            value = self.add(TypedNode("where", (kept, value, bound), None, dtype))
        return value

    def cast(self, position: int, dtype: np.dtype[Any]) -> int:
        """Return the position of a node's value in a dtype."""
        if position in self.weak:
            return self.add(TypedNode("input", (), self.weak[position], dtype))
        place = self.places[position]
        if self.nodes[place].dtype == dtype:
            return place
        return self.add(TypedNode("cast", (place,), None, dtype))

    def _resolve(self, node: Node) -> tuple[tuple[np.dtype[Any], ...], np.dtype[Any]]:
        """Return the dtypes of a node's operands and of its result."""
        types: list[InputType] = [
            self.types[self.weak[arg]] if arg in self.weak else self.nodes[self.places[arg]].dtype
            for arg in node.args
        ]
        if all(isinstance(found, type) for found in types):
            raise NotUnderstoodError("an operation on Python scalars alone")
        if node.op in CASTS:
            dtype = np.dtype(node.param)
            enforced = node.op == "enforce"
            if enforced and not np.can_cast(types[0], dtype, casting="same_kind"):
                raise NotUnderstoodError("a dtype that was not inferred")
            if isinstance(types[0], np.dtype) and types[0].kind == "c" and dtype.kind not in "bc":
                raise NotUnderstoodError("NumPy warns of the imaginary part")
            _check(dtype)
            return (dtype,), dtype
        if node.op == "where":
            result = _promoted(types[1:])
            return (np.dtype(bool), result, result), result
        if node.op == "clip":
            result = _promoted(types)
            if result.kind == "c":
                raise NotUnderstoodError("clip of complex numbers")
            return (result,) * 3, result
        ufunc = UFUNCS[_LIKE_UFUNCS.get(node.op, node.op)]
        weak = [np.dtype(bool) if found is bool else found for found in types]
        try:
            *wanted, result = ufunc.resolve_dtypes((*weak, None))
        except TypeError as error:
            raise NotUnderstoodError(str(error)) from None
        for dtype in (*wanted, result):
            _check(dtype)
        return tuple(wanted), result


def _promoted(types: list[InputType]) -> np.dtype[Any]:
    result = np.result_type(*(t() if isinstance(t, type) else t for t in types))
    _check(result)
    return result


def _check(dtype: np.dtype[Any]) -> None:
    if dtype.kind not in KINDS or not dtype.isnative or dtype.itemsize > 16 or dtype.char in "gG":
        raise NotUnderstoodError(f"{dtype} is left to NumPy")


@lru_cache(maxsize=4096)
def typed(expression: Expression, types: tuple[InputType, ...]) -> TypedExpression:
    """Give dtypes to an expression, whose inputs have certain types.

    Raises NotUnderstoodError if NumPy has no such operation, or a dtype is not supported.
    """
    typing = _Typing(types)
    for position, node in enumerate(expression.nodes):
        typing.take(position, node)
    outputs = []
    converted = []
    for output in expression.outputs:
        if output.node in typing.weak:
            raise NotUnderstoodError("a Python scalar is no array")
        dtype = typing.nodes[typing.places[output.node]].dtype
        if output.reduction is None or output.reduction in SELECTING | INDEXING:
            place = typing.places[output.node]
        elif output.reduction in ACCUMULATING:
            dtype = _sum_dtype(dtype) if output.dtype is None else np.dtype(output.dtype)
            _check(dtype)
            if dtype.kind == "b":
                raise NotUnderstoodError("a sum of bools, which is a logical or")
            place = typing.cast(output.node, dtype)
        else:  # any, all
            dtype = np.dtype(bool)
            place = typing.cast(output.node, dtype)
        if output.reduction in INDEXING:
            dtype = np.dtype(np.intp)
        outputs.append((place, output.reduction, dtype))
        converted.append(place != typing.places[output.node])
    return TypedExpression(tuple(typing.nodes), tuple(outputs), tuple(converted), expression, types)


def _sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of NumPy's sums and products, which is a large one for small integers."""
    found: np.dtype[Any] = np.add.reduce(np.empty(0, dtype)).dtype
    return found
