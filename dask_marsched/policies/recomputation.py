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
    """What a loss costs at least."""

    again: list[int]  #: The smallest set of operands to recompute, ascending.
    spared: list[int]  #: Lost results that are not needed.


def smallest_recovery(lineage: Lineage, dependents: Edges, lost: Collection[int]) -> Recovery:
    """Return the operands to recompute after the last copies of `lost` were lost.

    An operand is needed if its result is not held, and it is wanted or a needed operand reads it.
    Descending numbers visit each operand after its readers, each edge at most twice.
    """
    ran, held, wanted = lineage.ran, lineage.held, lineage.wanted
    needed = bytearray(len(lineage.inputs))
    for i in range(len(needed) - 1, -1, -1):
        needed[i] = not held[i] and (wanted[i] or any(needed[j] for j in dependents[i]))
    return Recovery(
        again=[i for i, is_needed in enumerate(needed) if is_needed and ran[i]],
        spared=sorted(i for i in set(lost) if not needed[i]),
    )
