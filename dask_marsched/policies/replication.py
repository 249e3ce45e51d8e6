"""Chooses results to replicate because recomputing them would take long."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Operand = TypeVar("Operand", bound=Hashable)

_MOST = 2_000  #: Most operands visited to compute one cost, which else is a lower bound.
#: Least seconds of recomputation that justify a replica, far more than a copy takes.
EXPENSIVE = 10.0


@dataclass(frozen=True, slots=True)
class ReplicaCandidate(Generic[Operand]):
    """A result with a single copy."""

    operand: Operand
    nbytes: int
    seconds: float  #: Time to recompute it on one thread, if lost.


def recomputation_seconds(
    operand: Operand,
    inputs: Callable[[Operand], Iterable[Operand]],
    is_held: Callable[[Operand], bool],
    seconds: Callable[[Operand], float],
) -> float:
    """Return the seconds to recompute a lost result and the inputs not held, on one thread."""
    stack, seen, total = [operand], {operand}, 0.0
    while stack and len(seen) <= _MOST:
        one = stack.pop()
        total += seconds(one)
        for read in inputs(one):
            if read not in seen and not is_held(read):
                seen.add(read)
                stack.append(read)
    return total


def choose_replicas(
    candidates: Sequence[ReplicaCandidate[Operand]], budget: float, least: float = EXPENSIVE
) -> list[Operand]:
    """Return operands to replicate within `budget` bytes, by seconds saved for each byte."""
    expensive = [c for c in candidates if c.seconds >= least and c.nbytes > 0]
    expensive.sort(key=lambda c: -c.seconds / c.nbytes)
    chosen = []
    for candidate in expensive:
        if candidate.nbytes <= budget:
            budget -= candidate.nbytes
            chosen.append(candidate.operand)
    return chosen
