"""Defines the graph of operands that the policies read."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError
from itertools import pairwise
from typing import overload

import numpy as np

NO_HOME = -1  #: `OperandGraph.home` of an operand without inputs outside of the graph.


class Edges(Sequence[Sequence[int]]):
    """Rows of ascending numbers in one list: a million lists would slow the garbage collector."""

    __slots__ = ("flat", "starts")

    def __init__(self, starts: list[int], flat: list[int]) -> None:
        self.starts = starts
        self.flat = flat

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> Edges:
        """Build edges from rows."""
        starts, flat = [0], list[int]()
        for row in rows:
            flat.extend(row)
            starts.append(len(flat))
        return cls(starts, flat)

    def renumbered(self, order: Sequence[int]) -> Edges:
        """Return the edges with operands renumbered: `order[k]` becomes operand ``k``."""
        n = len(self)
        first = np.asarray(self.starts, dtype=np.int64)
        old = np.asarray(order, dtype=np.int64)
        place = np.empty(n, dtype=np.int64)
        place[old] = np.arange(n)
        degrees = np.diff(first)
        owners = np.repeat(place, degrees)
        flat = place[np.asarray(self.flat, dtype=np.int64)]
        # by owner, and the numbers of each ascending
        both = np.sort(owners * n + flat)
        starts = np.concatenate([[0], np.cumsum(degrees[old])])
        return Edges(starts.tolist(), (both % max(1, n)).tolist())

    def reversed(self) -> Edges:
        """Return the other direction; ValueError if an operand reads itself or a later one."""
        n = len(self)
        first = np.asarray(self.starts, dtype=np.int64)
        degrees = first[1:] - first[:-1]
        owners = np.repeat(np.arange(n), degrees)
        flat = np.asarray(self.flat, dtype=np.int64)
        wrong = np.flatnonzero((flat >= owners) | (flat < 0))
        if len(wrong):
            i, j = int(owners[wrong[0]]), int(flat[wrong[0]])
            raise ValueError(
                f"operand number {i} reads operand number {j}: "
                "operands must be numbered in a topological order"
            )
        starts = np.concatenate([[0], np.cumsum(np.bincount(flat, minlength=n))])
        return Edges(starts.tolist(), owners[np.argsort(flat, kind="stable")].tolist())

    @overload
    def __getitem__(self, i: int) -> list[int]: ...
    @overload
    def __getitem__(self, i: slice) -> list[list[int]]: ...
    def __getitem__(self, i: int | slice) -> list[int] | list[list[int]]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        starts = self.starts
        if i < 0:
            i += len(self)
        return self.flat[starts[i] : starts[i + 1]]

    def __iter__(self) -> Iterator[list[int]]:
        flat = self.flat
        return (flat[start:stop] for start, stop in pairwise(self.starts))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Edges):
            return NotImplemented
        return self.starts == other.starts and self.flat == other.flat

    __hash__ = None  # type: ignore[assignment]  # Python's way to say unhashable


@dataclass(frozen=True, slots=True, eq=False)
class OperandGraph:
    """Operands still to be computed, numbered by priority, that is in the order of ``dask.order``.

    Each follows its inputs, else ValueError is raised. Inputs already in memory are not operands of
    the graph; `home` and `home_bytes` describe them.
    """

    keys: Sequence[Hashable]
    inputs: Edges
    nbytes: Sequence[float]  #: Bytes of each result; a guess unless `known` is set.
    known: bytes  #: 1 where `nbytes` was derived from the graph or learned from results.
    home: Sequence[int] = ()  #: Worker that holds most of its inputs in memory, or `NO_HOME`.
    home_bytes: Sequence[float] = ()  #: Bytes of those inputs on that worker.
    kept: frozenset[int] = frozenset()  #: Operands outside of the graph read these results.
    #: Operands whose function cuts a part off their only input, of whatever size.
    pieces: frozenset[int] = frozenset()
    dependents: Edges = field(init=False)

    def __post_init__(self) -> None:
        n = len(self.keys)
        if not self.home:
            object.__setattr__(self, "home", [NO_HOME] * n)
            object.__setattr__(self, "home_bytes", [0.0] * n)
        for name in ("inputs", "nbytes", "known", "home", "home_bytes"):
            length = len(getattr(self, name))
            if length != n:
                raise ValueError(f"{name} has {length} entries for {n} operands")
        object.__setattr__(self, "dependents", self.inputs.reversed())

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.keys)))

    def head(self, count: int) -> OperandGraph:
        """Return the graph of the first `count` operands; `kept` are those that the rest reads."""
        if count >= len(self):
            return self
        readers = self.dependents
        kept = (i for i in range(count) if readers[i] and readers[i][-1] >= count)
        inputs = Edges(
            self.inputs.starts[: count + 1], self.inputs.flat[: self.inputs.starts[count]]
        )
        return OperandGraph(
            self.keys[:count],
            inputs,
            self.nbytes[:count],
            self.known[:count],
            self.home[:count],
            self.home_bytes[:count],
            frozenset(kept),
            frozenset(i for i in self.pieces if i < count),
        )

    def with_nbytes(self, nbytes: Sequence[float], known: bytes) -> OperandGraph:
        """Return the graph with other sizes."""
        return replace(self, nbytes=nbytes, known=known)


def topological_order(inputs: Sequence[Sequence[int]]) -> list[int]:
    """Return the operands depth first, each after its inputs; CycleError if there is a cycle."""
    order: list[int] = []
    rows = list(inputs)
    state = bytearray(len(rows))  # 1: what it reads is being visited; 2: in the order
    for start in range(len(rows)):
        if state[start]:
            continue
        stack = [start]
        while stack:
            i = stack.pop()
            if i < 0:
                state[~i] = 2
                order.append(~i)
            elif not state[i]:
                if own := rows[i]:
                    state[i] = 1
                    stack.append(~i)
                    for j in own:
                        if not state[j]:
                            stack.append(j)
                        elif state[j] == 1:
                            raise CycleError(f"operand number {i} depends on its own result")
                else:
                    state[i] = 2
                    order.append(i)
    return order


def depths(graph: OperandGraph, initial: Sequence[bool] | None = None) -> list[int]:
    """Return the longest path to each operand from an `initial` one (default: without inputs)."""
    depth = [0] * len(graph)
    for i, inputs in enumerate(graph.inputs):
        if initial is not None and initial[i]:
            continue
        deepest = -1
        for j in inputs:
            if depth[j] > deepest:
                deepest = depth[j]
        depth[i] = deepest + 1
    return depth


def typical_nbytes(graph: OperandGraph, operands: Sequence[int]) -> float:
    """Return the mean bytes of results, at least 1; weights by size discount tiny results."""
    total = sum(graph.nbytes[i] for i in operands)
    if total <= 0:
        return 1.0
    return max(1.0, sum(graph.nbytes[i] ** 2 for i in operands) / total)
