"""Which operands are initial and which are hubs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dask_marsched.core.graph import OperandGraph

#: A root with more dependents than this that read something else too is a candidate hub.
_FAN_OUT = 6


@dataclass(frozen=True, slots=True)
class Roles:
    """Roles of the operands of a graph.

    Attributes
    ----------
    initial
        Flags: operands that can start before any other that is planned, because they read
        nothing that is still to be computed but, at most, hubs.
    hub
        Flags: operands read by so many others that no placement can keep them together.
    shared
        Number of dependents from which on an operand says nothing about where its dependents
        belong together.
    """

    initial: bytes
    hub: bytes
    shared: int

    def head(self, count: int) -> Roles:
        """Return the roles of the first operands."""
        return Roles(self.initial[:count], self.hub[:count], self.shared)

    def initial_operands(self) -> list[int]:
        """Return the numbers of the initial operands, ascending."""
        return [i for i, flag in enumerate(self.initial) if flag]


def roles(graph: OperandGraph, parallelism: int = 1) -> Roles:
    """Find the hubs and the initial operands of a graph.

    A hub has more than ``max(16, sqrt(n) / 2)`` dependents, n being the number of operands. If
    more than half of the roots have more than 6 dependents that each read two or more operands
    (an outer product, a matrix multiplication), those roots are hubs too: what is read by so
    many has no natural neighbours.

    Where most dependents of such operands read nothing else they run best where it is, as long
    as there are operands enough of this kind for every thread to have some, or if they are
    pieces that it is cut into (by a rechunk): to cut is less work than to move what is cut. Then
    they are no hubs.

    Parameters
    ----------
    graph
        The graph.
    parallelism
        Number of threads of the cluster.

    Source: DESIGN 5.1 of this project, tuned in simulation.
    """
    n = len(graph)
    shared = int(max(16.0, math.sqrt(n) / 2))
    hub = bytearray(n)
    roots, alone = [], []
    for i, dependents in enumerate(graph.dependents):
        if len(dependents) > shared:
            hub[i] = 1
            if 2 * sum(len(graph.inputs[d]) == 1 for d in dependents) > len(dependents):
                alone.append(i)
        if not graph.inputs[i]:
            roots.append(i)
    enough = len(alone) >= 2 * parallelism
    for i in alone:
        if enough or _is_cut_up(graph, i):
            hub[i] = 0
    fanned = [i for i in roots if _fans_out(graph, i)]
    if len(fanned) * 2 > len(roots):
        for i in fanned:
            hub[i] = 1
    initial = bytearray(n)
    for i, inputs in enumerate(graph.inputs):
        if not hub[i] and all(hub[j] for j in inputs):
            initial[i] = 1
    return Roles(bytes(initial), bytes(hub), shared)


def _is_cut_up(graph: OperandGraph, i: int) -> bool:
    """Whether the operands that read only `i` return about its own bytes between them."""
    pieces = [d for d in graph.dependents[i] if len(graph.inputs[d]) == 1]
    if not graph.known[i] or not all(graph.known[d] for d in pieces):
        return False
    total = sum(graph.nbytes[d] for d in pieces)
    return 0.5 * graph.nbytes[i] <= total <= 1.5 * graph.nbytes[i]


def _fans_out(graph: OperandGraph, root: int) -> bool:
    """Whether more than `_FAN_OUT` dependents of a root read something else too."""
    dependents = graph.dependents[root]
    if len(dependents) <= _FAN_OUT:
        return False
    return sum(len(graph.inputs[d]) > 1 for d in dependents) > _FAN_OUT
