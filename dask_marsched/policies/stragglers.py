"""Stragglers: operands that run far beyond what is usual for their kind, run a second time."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Operand = TypeVar("Operand", bound=Hashable)
Worker = TypeVar("Worker", bound=Hashable)

#: Executions that tell what is usual for a kind.
_ENOUGH = 5
#: What the last execution counts in the mean, once there are many.
_WEIGHT = 0.05
#: How many times the usual duration, and how many seconds at least, a straggler has run. Chunks of
#: one kind hardly differ by more, and to start a second run takes a fraction of that time.
_FACTOR, _LEAST = 4.0, 2.0


@dataclass(frozen=True, slots=True)
class Running(Generic[Operand, Worker]):
    """An operand that a worker runs.

    Attributes
    ----------
    operand, worker
        Which, and where.
    kind
        What kind of operand it is.
    seconds
        For how long it has run.
    """

    operand: Operand
    worker: Worker
    kind: str
    seconds: float


@dataclass(frozen=True, slots=True)
class SecondRun(Generic[Operand, Worker]):
    """An operand that is to run a second time, and where.

    Attributes
    ----------
    operand, worker
        Which, and where.
    reason
        Why, for people.
    """

    operand: Operand
    worker: Worker
    reason: str


class Durations:
    """The usual duration of each kind of operand: a mean, the last executions count most."""

    def __init__(self) -> None:
        self._means: dict[str, tuple[int, float]] = {}

    def observe(self, kind: str, seconds: float) -> None:
        """Take note of an execution."""
        count, mean = self._means.get(kind, (0, 0.0))
        count += 1
        self._means[kind] = count, mean + (seconds - mean) * max(1 / count, _WEIGHT)

    def usual(self, kind: str) -> float | None:
        """Return how long one takes, seconds; None as long as that is not known."""
        count, mean = self._means.get(kind, (0, 0.0))
        return mean if count >= _ENOUGH else None


class StragglerRule:
    """Says which operands run a second time.

    Parameters
    ----------
    factor
        An operand is a straggler that has run for so many times what is usual.
    least
        And for so long, seconds: below that a second run costs more than it saves.
    """

    def __init__(self, factor: float = _FACTOR, least: float = _LEAST) -> None:
        self.factor = factor
        self.least = least

    def choose(
        self,
        running: Iterable[Running[Operand, Worker]],
        durations: Durations,
        idle: Sequence[Worker],
    ) -> list[SecondRun[Operand, Worker]]:
        """Return what is to run a second time, one for each idle worker at most.

        First what is latest, by the time that it has run beyond the usual; of equals the first.

        Parameters
        ----------
        running
            What runs, and only once so far.
        durations
            What is usual.
        idle
            Workers with nothing to do, the best first.
        """
        late = []
        for one in running:
            usual = durations.usual(one.kind)
            if usual is not None and one.seconds > max(self.least, self.factor * usual):
                late.append((one.seconds - usual, one, usual))
        late.sort(key=lambda each: -each[0])
        free = list(idle)
        chosen = []
        for _, one, usual in late:
            worker = next((worker for worker in free if worker != one.worker), None)
            if worker is None:
                continue
            free.remove(worker)
            reason = f"runs for {one.seconds:.3g} s, usual are {usual:.3g} s"
            chosen.append(SecondRun(one.operand, worker, reason))
        return chosen
