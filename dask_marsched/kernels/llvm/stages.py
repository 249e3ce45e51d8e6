"""Orders the operations of an expression into stages, for a block of elements.

Compiled loops alternate with calls of NumPy's inner loops. Results that a later stage needs are
kept in a buffer of the size of a block.
"""

from __future__ import annotations

from dataclasses import dataclass

from dask_marsched.kernels.backend import UnsupportedError
from dask_marsched.kernels.expression import TypedExpression, TypedNode
from dask_marsched.kernels.llvm.operations import SILENT, is_compiled
from dask_marsched.kernels.operations import RAISING, UFUNCS


@dataclass(frozen=True)
class Stages:
    """The stages of an expression."""

    stage: tuple[int, ...]  #: By node. Even stages are compiled loops, odd ones are calls.
    compiled: tuple[bool, ...]  #: by node, whether it is compiled
    last: int  #: the last stage, a compiled one
    kept_until: dict[int, int]  #: for nodes in a buffer, the last stage that needs them


def stages(expression: TypedExpression, exact: bool) -> Stages:
    """Assign nodes to stages; raise UnsupportedError if one can neither be compiled nor called."""
    nodes = expression.nodes
    compiled: list[bool] = []
    stage: list[int] = []
    for node in nodes:
        operands = tuple(nodes[arg].dtype for arg in node.args)
        own = node.op == "input" or is_compiled(node, operands, exact)
        callable_ = node.op in UFUNCS and not (node.op in RAISING and node.dtype.kind in "iu")
        if not own and not callable_:
            raise UnsupportedError(f"{node.op} of {', '.join(d.name for d in operands)}")
        earliest = max((stage[arg] for arg in node.args), default=0)
        if earliest % 2 == own:
            earliest += 1
        elif _splits(nodes, node):
            earliest += 2
        compiled.append(own)
        stage.append(earliest)
    last = max(stage, default=0)
    last += last % 2
    _delay(nodes, compiled, stage, last)
    return Stages(tuple(stage), tuple(compiled), last, _kept(expression, compiled, stage, last))


def _splits(nodes: tuple[TypedNode, ...], node: TypedNode) -> bool:
    """Whether a node's operands have to be computed in an earlier stage.

    The compiler may skip an operand of ``where`` for elements that do not need it, and with it the
    flags that NumPy would raise. It cannot skip operands that the condition needs, too.
    """
    if node.op != "where" or not any(_raises(nodes, arg) for arg in node.args[1:]):
        return False
    before: set[int] = set()
    found = [node.args[0]]
    while found:
        position = found.pop()
        if position not in before:
            before.add(position)
            found.extend(nodes[position].args)
    return any(_raises(nodes, arg) and arg not in before for arg in node.args[1:])


def _raises(nodes: tuple[TypedNode, ...], position: int) -> bool:
    node = nodes[position]
    if node.op == "cast":  # to a smaller range, or without NaN
        return nodes[node.args[0]].dtype.kind == "f" and node.dtype.kind != "b"
    return node.op not in SILENT and node.dtype.kind in "fc"


def _delay(nodes: tuple[TypedNode, ...], compiled: list[bool], stage: list[int], last: int) -> None:
    """Move compiled nodes to their latest stage, so that fewer results have to be kept."""
    latest = [last] * len(nodes)
    for position in reversed(range(len(nodes))):
        node = nodes[position]
        if compiled[position] and node.op != "input":
            stage[position] = max(stage[position], latest[position] - latest[position] % 2)
        bound = stage[position] - (2 if _splits(nodes, node) else 0)
        for arg in node.args:
            latest[arg] = min(latest[arg], bound)


def _kept(
    expression: TypedExpression, compiled: list[bool], stage: list[int], last: int
) -> dict[int, int]:
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
        and (not compiled[position] or until.get(position, 0) > stage[position])
    }
