"""Finds the smallest set of operands to recompute after results were lost."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dask_marsched.core.graph import Edges


@dataclass(frozen=True, slots=True)
class Lineage:
    """A graph after a loss, in a topological numbering."""

    inputs: Edges
    ran: bytes  #: 1 for each operand that has had a result, lost or not.
    held: bytes  #: 1 for each operand whose result survives.
    wanted: bytes  #: 1 for each operand whose result is wanted.


@dataclass(frozen=True, slots=True)
class Recovery:
    """The operands to compute after a loss."""

    again: list[int]  #: The smallest set of operands to recompute, ascending.
    lost: list[int]  #: Those of them whose results were lost now; others had been released before.
    ready: list[int]  #: Operands to compute, for the first time or again, that wait for no others.
    unscheduled: list[int]  #: Operands to compute that wait for others.
    spared: list[int]  #: Lost results that are not needed.


def smallest_recovery(lineage: Lineage, dependents: Edges, lost: Collection[int]) -> Recovery:
    """Return the operands to compute after the last copies of `lost` were lost.

    An operand is needed if its result is not held, and it is wanted or a needed operand reads it.
    Descending numbers visit each operand after its readers, each edge at most twice.
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
