"""Expressions: what is done to each element of some arrays, and which reductions follow.

An expression is a list of nodes in the order of their evaluation. It knows nothing of dtypes;
`typed` adds them, by asking NumPy.
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

#: What an array or a scalar is to NumPy's promotion: a dtype, or the type of a Python scalar.
InputType = np.dtype[Any] | type

_BOOL = np.dtype(bool)
#: Kinds of dtypes that are understood: bool, integers, floats, complex numbers.
KINDS = "biufc"
#: What an array of floats or complex numbers becomes by ``**`` with a Python scalar: its type and
#: its value (as ``fast_scalar_power`` in NumPy's number.c; anything else is a power).
_SHORT_CUTS: dict[tuple[Any, Any], str] = {
    (int, 2): "square",
    (int, -1): "reciprocal",
    (float, 0.5): "sqrt",
}
#: The largest exponent that a kernel may turn into multiplications.
MOST_MULTIPLIED = 4


class NotUnderstoodError(Exception):
    """An expression, or its use with certain dtypes, is to be left to NumPy."""


class Node(NamedTuple):
    """An operation.

    Attributes
    ----------
    op
        ``"input"``, or the name of an operation.
    args
        Positions of its operands.
    param
        Number of an input, the dtype of a cast, the exponent of a power where it is a Python
        scalar; None otherwise.
    """

    op: str
    args: tuple[int, ...] = ()
    param: Any = None


class Output(NamedTuple):
    """A result: a node, and how it is reduced, in which dtype (None for NumPy's choice)."""

    node: int
    reduction: str | None = None
    dtype: str | None = None


@dataclass(frozen=True)
class Expression:
    """A fused expression.

    Attributes
    ----------
    nodes
        In the order of evaluation: operands stand before what uses them.
    outputs
        All of them reduced, or none.
    axes
        Axes that are reduced, from 0; None for all of them.
    keepdims
        Whether reduced axes are kept with length 1.

    Raises
    ------
    NotUnderstoodError
        If it is not well-formed.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    axes: tuple[int, ...] | None = None
    keepdims: bool = False

    def __post_init__(self) -> None:
        for position, node in enumerate(self.nodes):
            if any(not 0 <= arg < position for arg in node.args):
                raise NotUnderstoodError(f"{node} does not stand after its operands")
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
        """Whether reductions follow."""
        return self.outputs[0].reduction is not None

    @property
    def operations(self) -> int:
        """How many operations there are, reductions included."""
        inputs = sum(node.op == "input" for node in self.nodes)
        return len(self.nodes) - inputs + (len(self.outputs) if self.reduced else 0)

    @property
    def inputs(self) -> int:
        """How many inputs there are."""
        return 1 + max((node.param for node in self.nodes if node.op == "input"), default=-1)

    def text(self) -> str:
        """Return the expression as people write it, inputs as a, b, c..."""
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
    if node.op in ("pow", "power") and node.param is not None:
        return f"{_text(nodes, node.args[0])}**{node.param}"
    args = [_text(nodes, arg) for arg in node.args]
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
    """An operation on operands of its own dtypes.

    Attributes
    ----------
    op, args, param
        As in `Node`; an input's parameter is its number.
    dtype
        Of the result.
    """

    op: str
    args: tuple[int, ...]
    param: Any
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class TypedExpression:
    """An expression with the dtypes that NumPy gives to it: casts are nodes of their own.

    Attributes
    ----------
    nodes
        As in `Expression`.
    outputs
        Position, reduction and dtype of each result.
    converted
        By output, whether its reduction takes in values of another dtype, as they are.
    source
        What it was made from.
    types
        Of the inputs.
    """

    nodes: tuple[TypedNode, ...]
    outputs: tuple[tuple[int, str | None, np.dtype[Any]], ...]
    converted: tuple[bool, ...]
    source: Expression
    types: tuple[InputType, ...]

    @property
    def reduced(self) -> bool:
        """Whether reductions follow."""
        return self.source.reduced


class _Typing:
    """Gives dtypes to the nodes of an expression, one after the other."""

    def __init__(self, types: tuple[InputType, ...]) -> None:
        self.types = types
        self.nodes: list[TypedNode] = []
        self._known: dict[TypedNode, int] = {}
        #: By position in the expression: position here, or the number of a Python scalar.
        self.places: list[int] = []
        self.weak: dict[int, int] = {}

    def add(self, node: TypedNode) -> int:
        """Return the position of a node, the same for the same node."""
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
        if short is not None:
            self.places.append(self.add(TypedNode(short, (self.places[args[0]],), None, result)))
            return
        if op in ("pow", "power"):
            # The exponent stays an operand: what a parameter is worth is the backend's affair.
            op = "power"
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
        """Return what NumPy's operator does instead of a power, if it takes a short cut."""
        base, exponent = node.args
        if base in self.weak or exponent not in self.weak:
            return None
        if self.nodes[self.places[base]].dtype.kind not in "fc":
            return None
        return _SHORT_CUTS.get((self.types[self.weak[exponent]], node.param))

    def _clip(self, operands: tuple[int, ...], dtype: np.dtype[Any]) -> int:
        # NumPy's keeps the value where it equals a bound (which tells -0.0 from 0.0), takes over
        # a bound that is NaN, and the upper one where they contradict each other.
        value, *bounds = operands
        for compare, bound in zip(("greater_equal", "less_equal"), bounds, strict=True):
            kept = self.add(TypedNode(compare, (value, bound), None, _BOOL))
            if dtype.kind == "f":
                nan = self.add(TypedNode("isnan", (value,), None, _BOOL))
                kept = self.add(TypedNode("bitwise_or", (kept, nan), None, _BOOL))
            value = self.add(TypedNode("where", (kept, value, bound), None, dtype))
        return value

    def cast(self, position: int, dtype: np.dtype[Any]) -> int:
        """Return the position of a node's value in another dtype."""
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
        ufunc = UFUNCS["power" if node.op == "pow" else node.op]
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
    """Give dtypes to an expression.

    Parameters
    ----------
    expression
        What is computed.
    types
        Of the inputs: a dtype, or the type of a Python scalar, which adapts to the others.

    Raises
    ------
    NotUnderstoodError
        If NumPy has no such operation, or a dtype is not understood.
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
    """Return in what NumPy adds up and multiplies: small integers in large ones."""
    found: np.dtype[Any] = np.add.reduce(np.empty(0, dtype)).dtype
    return found
