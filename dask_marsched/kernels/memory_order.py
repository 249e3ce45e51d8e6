"""Finds the order in memory of an expression's results, as NumPy would lay them out.

NumPy decides it operation by operation: a row plus a column has C order, even if the result is then
multiplied with an array in Fortran order. The order of a sum's terms depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from dask_marsched.kernels.expression import Expression, NotUnderstoodError
from dask_marsched.kernels.operations import CASTS

#: Absolute strides, in any unit; 0 along axes that are broadcast or have one element.
Strides = tuple[int, ...]


def order(
    expression: Expression, shapes: Sequence[Sequence[int]], strides: Sequence[Strides]
) -> tuple[int, ...]:
    """Return the axes of the results, from the outermost to the innermost in memory.

    ``shapes`` are those of all nodes, with 1 for axes that a node lacks; ``strides`` those of the
    inputs. Raises NotUnderstoodError if results have different orders.
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
        raise NotUnderstoodError("results in different orders in memory")
    return found.pop()


def _of_iteration(operands: Sequence[Strides], shape: Sequence[int]) -> tuple[int, ...]:
    """Return the order of axes in ``numpy.nditer``, which ufuncs and ``where`` use.

    Axes are sorted by strides; those on which operands disagree, or that none has, stay in C order.
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
    """Whether an axis belongs inside another one; None if no operand has both."""
    verdicts = {s[other] > s[axis] for s in operands if s[axis] and s[other]}
    return None if not verdicts else False not in verdicts


def _of_copy(operands: Sequence[Strides], shape: Sequence[int]) -> tuple[int, ...]:
    """Return the order of a copy, as by ``astype``: broadcast axes are innermost."""
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
