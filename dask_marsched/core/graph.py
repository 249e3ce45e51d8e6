"""The graph of operands that the policies read."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

#: `OperandGraph.home` of an operand without inputs outside of the graph.
NO_HOME = -1


@dataclass(frozen=True, slots=True, eq=False)
class OperandGraph:
    """Operands still to be computed, numbered in order of priority.

    Operand ``i`` comes before operand ``j`` in the order of execution that Dask proposes
    (``dask.order``) exactly if ``i < j``; an operand's number is always larger than those of
    its inputs. Inputs whose results are in memory already are not operands of the graph: what
    matters of them is `home`.

    Parameters
    ----------
    keys
        The operands' keys (Dask's task keys).
    inputs
        For each operand the numbers of the operands that it reads, without duplicates.
    nbytes
        Size of each operand's result in bytes; a guess where `known` says so.
    known
        For each operand a 1 where `nbytes` was derived from the graph or learned from results.
    home
        For each operand the number of the worker that holds most of the input bytes which are
        in memory already, or `NO_HOME`.
    home_bytes
        Bytes of those inputs on the home worker.

    Raises
    ------
    ValueError
        The sequences differ in length, or an operand reads one with a larger number (the order
        is not topological).
    """

    keys: Sequence[Hashable]
    inputs: Sequence[Sequence[int]]
    nbytes: Sequence[float]
    known: bytes
    home: Sequence[int] = ()
    home_bytes: Sequence[float] = ()
    dependents: Sequence[Sequence[int]] = field(init=False)

    def __post_init__(self) -> None:
        n = len(self.keys)
        if not self.home:
            object.__setattr__(self, "home", [NO_HOME] * n)
            object.__setattr__(self, "home_bytes", [0.0] * n)
        lengths = {
            "inputs": len(self.inputs),
            "nbytes": len(self.nbytes),
            "known": len(self.known),
            "home": len(self.home),
            "home_bytes": len(self.home_bytes),
        }
        for name, length in lengths.items():
            if length != n:
                raise ValueError(f"{name} has {length} entries for {n} operands")
        dependents: list[list[int]] = [[] for _ in range(n)]
        for i, inputs in enumerate(self.inputs):
            for j in inputs:
                if not 0 <= j < i:
                    raise ValueError(
                        f"operand {self.keys[i]!r} is numbered {i} but reads operand number {j}: "
                        "operands must be numbered in a topological order"
                    )
                dependents[j].append(i)
        object.__setattr__(self, "dependents", dependents)

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.keys)))

    def with_nbytes(self, nbytes: Sequence[float], known: bytes) -> OperandGraph:
        """Return the same graph with other sizes (as learned from results)."""
        return replace(self, nbytes=nbytes, known=known)


def depths(graph: OperandGraph, initial: Sequence[bool] | None = None) -> list[int]:
    """Return each operand's depth: the longest path from an initial operand.

    Parameters
    ----------
    graph
        The graph.
    initial
        Operands whose depth is 0 whatever they read; by default those without inputs.
    """
    depth = [0] * len(graph)
    inputs = graph.inputs
    for i in range(len(graph)):
        if initial is not None and initial[i]:
            continue
        deepest = -1
        for j in inputs[i]:
            if depth[j] > deepest:
                deepest = depth[j]
        depth[i] = deepest + 1
    return depth


def average_nbytes(graph: OperandGraph, operands: Sequence[int]) -> float:
    """Return the mean size in bytes of the results of `operands`, at least one byte."""
    if not operands:
        return 1.0
    return max(1.0, sum(graph.nbytes[i] for i in operands) / len(operands))
