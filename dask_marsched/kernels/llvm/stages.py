"""Orders the operations of an expression into stages, for a block of elements.

Compiled loops alternate with calls of NumPy's inner loops. Results that a later stage needs are
kept in a buffer of the size of a block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dask_marsched.kernels.backend import UnsupportedError
from dask_marsched.kernels.expression import TypedExpression, TypedNode
from dask_marsched.kernels.llvm.operations import (
    CLASSIFICATIONS,
    COMPARISONS,
    SILENT,
    OperationCode,
    operation_code,
)
from dask_marsched.kernels.operations import RAISING, UFUNCS

_Codes = list[OperationCode | None]


@dataclass(frozen=True)
class Stages:
    """The stages of an expression."""

    stage: tuple[int, ...]  #: By node. Even stages are compiled loops, odd ones are calls.
    code: tuple[OperationCode | None, ...]  #: by node; None for inputs and what is called
    last: int  #: the last stage, a compiled one
    kept_until: dict[int, int]  #: for nodes in a buffer, the last stage that needs them


def stages(expression: TypedExpression, exact: bool) -> Stages:
    """Assign nodes to stages; raise UnsupportedError if one can neither be compiled nor called."""
    nodes = expression.nodes
    uses = Counter(arg for node in nodes for arg in node.args)
    code: list[OperationCode | None] = []
    stage: list[int] = []
    #: By node, whether its operands have to be computed in an earlier stage.
    apart: list[bool] = []
    for node in nodes:
        operands = tuple(nodes[arg].dtype for arg in node.args)
        code.append(None if node.op == "input" else operation_code(node, operands, exact))
        own = node.op == "input" or code[-1] is not None
        callable_ = node.op in UFUNCS and not (node.op in RAISING and node.dtype.kind in "iu")
        # NumPy's loop for half precision rounds by the stride
        callable_ = callable_ and not (node.op == "cbrt" and node.dtype.char == "e")
        if not own and not callable_:
            raise UnsupportedError(f"{node.op} of {', '.join(d.name for d in operands)}")
        split = code[-1] is None or _splits(nodes, node, code, apart)
        apart.append(split or _may_cancel(nodes, node, uses, apart))
        earliest = max((stage[arg] for arg in node.args), default=0)
        if earliest % 2 == own:
            earliest += 1
        elif code[-1] is not None and apart[-1]:
            earliest += 2
        stage.append(earliest)
    last = max(stage, default=0)
    last += last % 2
    _delay(nodes, code, stage, apart, last)
    return Stages(tuple(stage), tuple(code), last, _kept(expression, code, stage, last))


def _splits(
    nodes: tuple[TypedNode, ...], node: TypedNode, code: _Codes, apart: Sequence[bool]
) -> bool:
    """Whether a compiled node's operands have to be computed in an earlier stage.

    The compiler drops what a result does not depend on, and with it the flags that NumPy would
    raise: operands of ``where`` that an element does not need, unless the condition needs them;
    the floats between integers; the root in ``sqrt(x) != 0``, or all of ``y`` in ``y < y``. Floats
    that were integers may be known not to be NaN.
    """
    if node.op == "input" or (node.op != "where" and nodes[node.args[0]].dtype.kind != "f"):
        return False
    found = _computed(nodes, node.args[-2:], apart)
    if node.op == "where":
        found -= _computed(nodes, node.args[:1])
    noisy = any(code[p] is not None and _raises(nodes, p) for p in found)
    of_integers = any(_is_of_integers(nodes, p) for p in found)
    if node.op == "cast" and node.dtype.kind in "iu":
        return of_integers
    return noisy and (
        node.op == "where"
        or (node.op == "cast" and node.dtype.kind == "b")
        or (node.op in COMPARISONS and node.args[0] == node.args[1])
        or (node.op in CLASSIFICATIONS and of_integers)
    )


def _may_cancel(
    nodes: tuple[TypedNode, ...], node: TypedNode, uses: Mapping[int, int], apart: Sequence[bool]
) -> bool:
    """Whether a compiled node of bools or integers may not depend on one that raises flags.

    The compiler finds that of ``(m & g) | (m & ~g)`` and ``k - k``, that is, of what is used more
    than once, and of ``(x > 0) & (x <= 0)``. And the condition of ``where`` does not matter if both
    values are equal.
    """
    if node.op == "where" and node.args[1] == node.args[2]:
        found = _computed(nodes, node.args[:1], apart)
        return any(_raises(nodes, p) for p in found)
    if not node.args or any(nodes[p].dtype.kind in "fc" for p in node.args):
        return False
    found = _computed(nodes, node.args, apart)
    compared = Counter(frozenset(nodes[p].args) for p in found if nodes[p].op in COMPARISONS)
    repeated = [
        p
        for p in found
        if (uses[p] > 1 and nodes[p].dtype.kind not in "fc")
        or (nodes[p].op in COMPARISONS and compared[frozenset(nodes[p].args)] > 1)
    ]
    return any(_raises(nodes, p) for p in _computed(nodes, repeated, apart))


def _computed(
    nodes: tuple[TypedNode, ...], positions: Sequence[int], apart: Sequence[bool] = ()
) -> set[int]:
    """Return the nodes that some nodes depend on, and these; by ``apart`` those in one stage."""
    known: set[int] = set()
    found = list(positions)
    while found:
        position = found.pop()
        if position not in known:
            known.add(position)
            if not apart or not apart[position]:
                found.extend(nodes[position].args)
    return known


def _is_of_integers(nodes: tuple[TypedNode, ...], position: int) -> bool:
    """Whether a node is the conversion of integers to floats."""
    node = nodes[position]
    return node.op == "cast" and node.dtype.kind == "f" and nodes[node.args[0]].dtype.kind != "f"


def _raises(nodes: tuple[TypedNode, ...], position: int) -> bool:
    node = nodes[position]
    if node.op == "cast":  # to a smaller range, or without NaN
        return nodes[node.args[0]].dtype.kind == "f" and node.dtype.kind != "b"
    return node.op not in SILENT and node.dtype.kind in "fc"


def _delay(
    nodes: tuple[TypedNode, ...], code: _Codes, stage: list[int], apart: list[bool], last: int
) -> None:
    """Move compiled nodes to their latest stage, so that fewer results have to be kept."""
    latest = [last] * len(nodes)
    for position in reversed(range(len(nodes))):
        node = nodes[position]
        if code[position] is not None:
            stage[position] = max(stage[position], latest[position] - latest[position] % 2)
        bound = stage[position] - (2 if apart[position] and code[position] is not None else 0)
        for arg in node.args:
            latest[arg] = min(latest[arg], bound)


def _kept(expression: TypedExpression, code: _Codes, stage: list[int], last: int) -> dict[int, int]:
    until: dict[int, int] = {}
    for position, node in enumerate(expression.nodes):
        for arg in node.args:
            until[arg] = max(until.get(arg, 0), stage[position])
    for position, _, _ in expression.outputs:
        until[position] = last
    return {
        position: max(until.get(position, 0), stage[position])
        for position, node in enumerate(expression.nodes)
        if node.op != "input"
        and (code[position] is None or until.get(position, 0) > stage[position])
    }
