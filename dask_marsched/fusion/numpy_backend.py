"""The reference: NumPy's own functions, one operation after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_marsched.fusion.expression import Expression, Node, Output
from dask_marsched.fusion.operations import CASTS, INDEXING, OTHERS, REDUCTIONS, UFUNCS

NAME = "numpy"


def evaluate(expression: Expression, values: Sequence[Any]) -> list[Any]:
    """Return the results of an expression, by NumPy alone.

    Parameters
    ----------
    expression
        What is computed.
    values
        The inputs: arrays and Python scalars.

    Returns
    -------
    list
        One result for each output. Warnings and errors are NumPy's.
    """
    last = _last_uses(expression)
    found: dict[int, Any] = {}
    for position, node in enumerate(expression.nodes):
        found[position] = apply(node, [found[arg] for arg in node.args], values)
        for arg in node.args:
            if last[arg] == position:
                found.pop(arg, None)
    return [reduce(expression, output, found[output.node]) for output in expression.outputs]


def apply(node: Node, operands: list[Any], values: Sequence[Any]) -> Any:
    """Return the result of one operation."""
    if node.op == "input":
        return values[node.param]
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


def _last_uses(expression: Expression) -> dict[int, int]:
    last = {arg: position for position, node in enumerate(expression.nodes) for arg in node.args}
    last.update((output.node, len(expression.nodes)) for output in expression.outputs)
    return last
