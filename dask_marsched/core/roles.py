"""Finds the initial operands and the hubs of a graph."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dask_marsched.core.graph import OperandGraph

_FEW_DEPENDENTS = 6  #: An operand with at most this many dependents does not count as cut up.


@dataclass(frozen=True, slots=True)
class Roles:
    """Roles of the operands of a graph."""

    initial: bytes  #: Flags of operands that can start first: all their inputs are hubs.
    hub: bytes  #: Flags of operands with so many dependents that no placement keeps these together.

    def head(self, count: int) -> Roles:
        """Return the roles of the first `count` operands."""
        return Roles(self.initial[:count], self.hub[:count])

    def initial_operands(self) -> list[int]:
        """Return the numbers of the initial operands, ascending."""
        return [i for i, flag in enumerate(self.initial) if flag]


def roles(graph: OperandGraph, parallelism: int = 1) -> Roles:
    """Find the hubs and the initial operands of a graph for `parallelism` threads.

    A hub has more than ``max(16, sqrt(n) / 2)`` dependents for n operands. Blocks of multiplied
    matrices have fewer: as hubs, those of ``a @ b @ c`` held 1.54 of stock Dask's memory instead of
    0.91, simulated on 16 workers. An operand most of whose dependents read nothing else is no hub
    if there are enough such operands for all threads, or if the dependents are its pieces (as in a
    rechunk): slicing in place costs less than moving it. If their functions tell that they are
    pieces, they count as hubs themselves: what reads nothing else may run anywhere.
    """
    n = len(graph)
    shared = int(max(16.0, math.sqrt(n) / 2))
    hub = bytearray(n)
    alone = []
    starts = graph.dependents.starts
    for i in graph:
        if starts[i + 1] - starts[i] > shared:
            hub[i] = 1
            dependents = graph.dependents[i]
            if 2 * sum(len(graph.inputs[d]) == 1 for d in dependents) > len(dependents):
                alone.append(i)
    enough = len(alone) >= 2 * parallelism
    for i in alone:
        if enough or _is_cut_up(graph, i):
            hub[i] = 0
            if not enough:
                for d in _pieces(graph, i):
                    hub[d] = d in graph.pieces
    initial = bytearray(n)
    for i, inputs in enumerate(graph.inputs):
        if not hub[i] and (not inputs or (hub[inputs[0]] and all(hub[j] for j in inputs))):
            initial[i] = 1
    return Roles(bytes(initial), bytes(hub))


def cut_up_operands(graph: OperandGraph, parallelism: int = 1) -> list[int]:
    """Return the operands whose pieces should be sliced where the operand is.

    The pieces, dependents that read nothing else, return about its bytes in sum, or are known for
    pieces by their functions. If there are fewer such operands than half the threads
    (`parallelism`), most threads would get no pieces: then only those remain whose pieces are known
    by their functions or all meet something larger elsewhere.
    """
    found = [
        i
        for i, dependents in enumerate(graph.dependents)
        if len(dependents) > _FEW_DEPENDENTS and _is_cut_up(graph, i)
    ]
    if 2 * len(found) >= parallelism:
        return found
    return [
        i
        for i in found
        if all(d in graph.pieces or _meets_larger(graph, d) for d in _pieces(graph, i))
    ]


def _pieces(graph: OperandGraph, i: int) -> list[int]:
    """Return the operands that read only `i`."""
    return [d for d in graph.dependents[i] if len(graph.inputs[d]) == 1]


def _meets_larger(graph: OperandGraph, piece: int) -> bool:
    """Whether a piece is read, and all its readers also read something larger."""
    return bool(graph.dependents[piece]) and all(
        any(graph.nbytes[j] > graph.nbytes[piece] for j in graph.inputs[k])
        for k in graph.dependents[piece]
    )


def _is_cut_up(graph: OperandGraph, i: int) -> bool:
    """Whether the operands that read only `i` are pieces of it.

    Their functions or their sizes tell, which are about its bytes in sum then.
    """
    pieces = _pieces(graph, i)
    if pieces and graph.pieces.issuperset(pieces):
        return True
    if not graph.known[i] or not all(graph.known[d] for d in pieces):
        return False
    total = sum(graph.nbytes[d] for d in pieces)
    return 0.5 * graph.nbytes[i] <= total <= 1.5 * graph.nbytes[i]
