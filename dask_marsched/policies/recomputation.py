"""Failover: what must be computed again when results are lost, and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dask_marsched.core.graph import Edges


@dataclass(frozen=True, slots=True)
class Lineage:
    """A graph as it is after a loss; operands are numbered in a topological order.

    Attributes
    ----------
    inputs
        For each operand the numbers of those that it reads.
    ran
        A 1 for each operand that has had a result, whether it is still there or not.
    held
        A 1 for each operand whose result is there after the loss.
    wanted
        A 1 for each operand whose result somebody wants.
    """

    inputs: Edges
    ran: bytes
    held: bytes
    wanted: bytes


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a loss makes necessary.

    Attributes
    ----------
    again
        Operands to be computed again, ascending: the fewest with which all wanted results can
        be had.
    lost
        Those of them whose results were lost now; the others had been released before, and are
        read by one of these.
    ready
        Operands still to be computed, whether for the first time or again, all of whose inputs
        are there.
    unscheduled
        Operands still to be computed that wait for one of the others.
    spared
        Lost results that nobody needs any more.
    """

    again: list[int]
    lost: list[int]
    ready: list[int]
    unscheduled: list[int]
    spared: list[int]


def scan(lineage: Lineage, dependents: Edges, lost: Collection[int]) -> Recovery:
    """Return what must be computed, given what was lost.

    Two passes, as in Mars. Up the graph: the operands that are still to be computed or whose
    result is lost, as far as they are needed. Down from these: an operand that was computed, and
    whose result is lost or was released, is affected if one that is affected reads it.

    Both go over the numbers in descending order: what reads an operand has a larger number, and
    has been decided on before it. An operand is visited once and each edge twice at most.

    Parameters
    ----------
    lineage
        The graph after the loss.
    dependents
        ``lineage.inputs.reversed()``.
    lost
        Operands whose last copy was lost.
    """
    ran, held, wanted = lineage.ran, lineage.held, lineage.wanted
    needed = bytearray(len(lineage.inputs))
    for i in range(len(needed) - 1, -1, -1):
        needed[i] = not held[i] and (wanted[i] or any(needed[j] for j in dependents[i]))
    again = [i for i, is_needed in enumerate(needed) if is_needed and ran[i]]
    of_loss = set(lost)
    ready: list[int] = []
    unscheduled: list[int] = []
    for i, is_needed in enumerate(needed):
        if is_needed:
            waits = any(needed[j] for j in lineage.inputs[i])
            (unscheduled if waits else ready).append(i)
    return Recovery(
        again=again,
        lost=[i for i in again if i in of_loss],
        ready=ready,
        unscheduled=unscheduled,
        spared=sorted(i for i in of_loss if not needed[i]),
    )


def is_sufficient(lineage: Lineage, again: Collection[int]) -> bool:
    """Whether all wanted results can be had if exactly these operands are computed again.

    Operands that never ran may run. This says what a recovery has to achieve, not how it is
    found: tests compare `scan` with the smallest set for which it holds.
    """
    may_run, there = set(again), list(map(bool, lineage.held))
    for i in range(len(there)):
        if not there[i] and (i in may_run or not lineage.ran[i]):
            there[i] = all(there[j] for j in lineage.inputs[i])
    return all(there[i] for i, is_wanted in enumerate(lineage.wanted) if is_wanted)


def lineage(
    inputs: Sequence[Sequence[int]],
    ran: Collection[int],
    held: Collection[int],
    wanted: Collection[int],
) -> Lineage:
    """Return a `Lineage` of sets of numbers."""
    n = len(inputs)
    ran, held, wanted = set(ran), set(held), set(wanted)
    return Lineage(
        Edges.of(inputs),
        bytes(i in ran for i in range(n)),
        bytes(i in held for i in range(n)),
        bytes(i in wanted for i in range(n)),
    )
