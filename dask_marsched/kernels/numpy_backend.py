"""Evaluates expressions with NumPy's own functions; their results are the reference.

Only Python's operators on scalars may differ from these functions, and `bind` refuses them then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dask_marsched.kernels.expression import Expression, Node, Output
from dask_marsched.kernels.operations import CASTS, INDEXING, OTHERS, REDUCTIONS, UFUNCS

#: Operations that NumPy computes in the same way if the result replaces an operand.
_IN_PLACE = frozenset({"absolute", "add", "divide", "multiply", "negative", "sqrt", "subtract"})
_LARGE = 1 << 18  #: Bytes from which on memory is allocated by the system, and returned to it


class OwnedValues(list[Any]):
    """Inputs that nobody else needs any more, in a list that may be emptied."""


def evaluate(
    expression: Expression, values: Sequence[Any], known: dict[int, Any] | None = None
) -> list[Any]:
    """Return the results of an expression, one for each output.

    Nodes with a value in ``known`` are not computed again; its entries that are None are filled in.
    `OwnedValues` are emptied, so that each is released after its last use.
    """
    last = _last_uses(expression)
    inputs = _take(expression, values)
    found: dict[int, Any] = {}
    #: Nodes whose results nobody else refers to.
    own: set[int] = set()
    needed = _needed(expression, known) if known else None
    for position, node in enumerate(expression.nodes):
        if needed is not None and position not in needed:
            inputs.pop(position, None)
            continue
        value = known.get(position) if known else None
        if value is None:
            operands = [found[arg] for arg in node.args]
            ended = [last[arg] == position and arg in own for arg in node.args]
            value = _in_place(node, operands, ended)
            if value is None:
                value = inputs.pop(position) if node.op == "input" else apply(node, operands)
            del operands
            if known and position in known:
                known[position] = value
            elif node.op in UFUNCS or node.op == "pow":
                own.add(position)
        found[position] = value
        del value
        for arg in node.args:
            if last[arg] == position:
                found.pop(arg, None)
    return [reduce(expression, output, found[output.node]) for output in expression.outputs]


def _in_place(node: Node, operands: list[Any], ended: list[bool]) -> Any:
    """Return an operation's result in the memory of a large operand; None if that is impossible.

    NumPy does so for temporaries, as allocating a large array takes longer than computing it.
    """
    function: Any
    if node.op == "pow":
        function, operands, ended = np.square, operands[:1], ended[:1]
        if node.param != 2:
            return None
    elif node.op in _IN_PLACE:
        function = UFUNCS[node.op]
    else:
        return None
    target = next((x for x, end in zip(operands, ended, strict=True) if end), None)
    if type(target) is not np.ndarray or target.dtype.kind != "f" or target.nbytes < _LARGE:
        return None
    for other in operands:
        if isinstance(other, np.ndarray):
            alike = other.dtype == target.dtype and other.shape == target.shape
            if not alike or other.strides != target.strides:
                return None
        elif type(other) not in (int, float):
            return None
    return function(*operands, out=target)


def apply(node: Node, operands: list[Any]) -> Any:
    """Return the result of one operation."""
    if node.op in CASTS:
        return OTHERS[node.op](*operands, node.param)
    return (UFUNCS.get(node.op) or OTHERS[node.op])(*operands)


def reduce(expression: Expression, output: Output, value: Any) -> Any:
    """Return the reduction of a value."""
    if output.reduction is None:
        return value
    function = REDUCTIONS[output.reduction]
    if output.reduction in INDEXING:
        axis = None if expression.axes is None else expression.axes[0]
        return function(value, axis=axis, keepdims=expression.keepdims)
    axes = {"axis": expression.axes, "keepdims": expression.keepdims}
    if output.dtype is None:
        return function(value, **axes)
    return function(value, dtype=np.dtype(output.dtype), **axes)


def _take(expression: Expression, values: Sequence[Any]) -> dict[int, Any]:
    """Return the values by the node that reads them; empty `OwnedValues`."""
    nodes = enumerate(expression.nodes)
    inputs = {position: values[node.param] for position, node in nodes if node.op == "input"}
    if type(values) is OwnedValues:
        values.clear()
    return inputs


def _needed(expression: Expression, known: Mapping[int, Any]) -> set[int]:
    """Return the nodes that the outputs depend on, other than through known ones."""
    needed: set[int] = set()
    stack = [output.node for output in expression.outputs]
    while stack:
        position = stack.pop()
        if position not in needed:
            needed.add(position)
            if known.get(position) is None:
                stack.extend(expression.nodes[position].args)
    return needed


def _last_uses(expression: Expression) -> dict[int, int]:
    last = {arg: position for position, node in enumerate(expression.nodes) for arg in node.args}
    last.update((output.node, len(expression.nodes)) for output in expression.outputs)
    return last
