"""Protecting what is dear: results whose loss would cost much time get a second copy elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Operand = TypeVar("Operand", bound=Hashable)

#: Operands looked at to find out what one would cost: no more than this, for it takes time.
_MOST = 2_000
#: Seconds of computation that are worth a copy of a result: far more than to make one takes.
_DEAR = 10.0


@dataclass(frozen=True, slots=True)
class ReplicaCandidate(Generic[Operand]):
    """A result of which there is one copy.

    Attributes
    ----------
    operand
        Which.
    nbytes
        Bytes of a copy.
    seconds
        How long it would take to have it again, were it lost, on one thread.
    """

    operand: Operand
    nbytes: int
    seconds: float


def recomputation_seconds(
    operand: Operand,
    inputs: Callable[[Operand], Iterable[Operand]],
    is_held: Callable[[Operand], bool],
    seconds: Callable[[Operand], float],
) -> float:
    """Return how long it takes to compute an operand whose result is lost, on one thread.

    That is its own time, and that of all that it relies on, in turn, as far as their results are
    not held: each once. Where that are very many it is a lower bound.

    Parameters
    ----------
    operand
        Which.
    inputs
        Returns what an operand reads.
    is_held
        Whether the result of an operand is there.
    seconds
        Returns how long an operand takes.
    """
    stack, seen, total = [operand], {operand}, 0.0
    while stack and len(seen) <= _MOST:
        one = stack.pop()
        total += seconds(one)
        for read in inputs(one):
            if read not in seen and not is_held(read):
                seen.add(read)
                stack.append(read)
    return total


class ProtectionRule:
    """Says which results get a second copy.

    Parameters
    ----------
    least
        Seconds that the loss of a result must cost to be worth a copy.
    """

    def __init__(self, least: float = _DEAR) -> None:
        self.least = least

    def choose(
        self, candidates: Sequence[ReplicaCandidate[Operand]], budget: float
    ) -> list[Operand]:
        """Return which get one: what saves most time for each byte, as far as the budget goes.

        Parameters
        ----------
        candidates
            Results of which there is one copy.
        budget
            Bytes that their copies may take.
        """
        dear = [c for c in candidates if c.seconds >= self.least and c.nbytes > 0]
        dear.sort(key=lambda c: -c.seconds / c.nbytes)
        chosen = []
        for candidate in dear:
            if candidate.nbytes <= budget:
                budget -= candidate.nbytes
                chosen.append(candidate.operand)
        return chosen
