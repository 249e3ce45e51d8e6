"""In which order the axes of results lie in memory.

NumPy decides that operation by operation: a row plus a column lies as in C, whatever the result is
multiplied with afterwards. What follows depends on it: in which order a sum takes its terms, and
functions that need one order or the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from dask_marsched.kernels.expression import Expression, NotUnderstoodError
from dask_marsched.kernels.operations import CASTS

#: The elements of an array between neighbours along each axis, in any unit, without signs; 0 where
#: it is broadcast or has one element.
Strides = tuple[int, ...]


def order(
    expression: Expression, shapes: Sequence[Sequence[int]], strides: Sequence[Strides]
) -> tuple[int, ...]:
    """Return the axes of the results, from the outermost to the innermost in memory.

    Parameters
    ----------
    expression
        What is computed.
    shapes
        Of each node, all with as many axes as the results, 1 where one is missing.
    strides
        Of each input.

    Raises
    ------
    NotUnderstoodError
        If results of one expression lie in different orders.
    """
    known: list[Strides] = []
    orders: list[tuple[int, ...]] = []
    for node, shape in zip(expression.nodes, shapes, strict=True):
        if node.op == "input":
            known.append(strides[node.param])
            orders.append(_of_iteration([known[-1]], shape))
            continue
        operands = [known[arg] for arg in node.args]
        orders.append((_of_copy if node.op in CASTS else _of_iteration)(operands, shape))
        known.append(_packed(shape, orders[-1]))
    shape = shapes[expression.outputs[0].node]
    found = {orders[output.node] for output in expression.outputs}
    if len({tuple(axis for axis in one if shape[axis] > 1) for one in found}) > 1:
        raise NotUnderstoodError("results that lie in memory in different orders")
    return found.pop()


def _of_iteration(operands: Sequence[Strides], shape: Sequence[int]) -> tuple[int, ...]:
    """Return the order in which ``numpy.nditer`` sorts axes, as for ufuncs and ``where``.

    It is that of the strides, and as in C where operands disagree or none tells.
    """
    order: list[int] = []  # the innermost first
    for axis in reversed(range(len(shape))):
        place = len(order)
        for position in reversed(range(len(order))):
            verdict = _lies_inside(axis, order[position], operands)
            if verdict is None:
                continue
            if not verdict:
                break
            place = position
        order.insert(place, axis)
    return tuple(reversed(order))


def _lies_inside(axis: int, other: int, operands: Sequence[Strides]) -> bool | None:
    """Whether an axis belongs inside of another one; None if no operand tells."""
    verdicts = {s[other] > s[axis] for s in operands if s[axis] and s[other]}
    return None if not verdicts else False not in verdicts


def _of_copy(operands: Sequence[Strides], shape: Sequence[int]) -> tuple[int, ...]:
    """Return the order of a copy, as of ``astype``: an axis that is broadcast is innermost."""
    (strides,) = operands
    order = sorted(range(len(shape)), key=lambda axis: -strides[axis])
    long = [axis for axis in order if shape[axis] > 1]
    return tuple(range(len(shape))) if long == sorted(long) else tuple(order)


def _packed(shape: Sequence[int], order: Sequence[int]) -> Strides:
    """Return the strides of a new array."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        if shape[axis] > 1:
            strides[axis] = step
            step *= shape[axis]
    return tuple(strides)
