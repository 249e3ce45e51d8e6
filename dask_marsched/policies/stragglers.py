"""Finds stragglers, operands that run far longer than usual, for speculative execution."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Operand = TypeVar("Operand", bound=Hashable)
Worker = TypeVar("Worker", bound=Hashable)

_ENOUGH = 5  #: Least executions for a usual duration.
_WEIGHT = 0.05  #: Least weight of the last execution in the mean.
#: A straggler has run this many times the usual duration (chunks of a kind hardly differ more) and
#: this many seconds (below, a second run costs more than it saves).
_FACTOR, _LEAST_SECONDS = 4.0, 2.0


@dataclass(frozen=True, slots=True)
class Running(Generic[Operand, Worker]):
    """An operand that a worker has run for some seconds."""

    operand: Operand
    worker: Worker
    kind: str
    seconds: float


class Durations:
    """The mean duration of each kind, weighted to recent executions."""

    def __init__(self) -> None:
        self._means: dict[str, tuple[int, float]] = {}

    def observe(self, kind: str, seconds: float) -> None:
        """Record an execution."""
        count, mean = self._means.get(kind, (0, 0.0))
        count += 1
        self._means[kind] = count, mean + (seconds - mean) * max(1 / count, _WEIGHT)

    def usual(self, kind: str) -> float | None:
        """Return the usual duration in seconds, None before five executions."""
        count, mean = self._means.get(kind, (0, 0.0))
        return mean if count >= _ENOUGH else None


def choose_second_runs(
    running: Iterable[Running[Operand, Worker]], durations: Durations, idle: Sequence[Worker]
) -> list[tuple[Operand, Worker, str]]:
    """Return operands to run again, the latest first, each with an idle worker and the reason."""
    late = []
    for one in running:
        usual = durations.usual(one.kind)
        if usual is not None and one.seconds > max(_LEAST_SECONDS, _FACTOR * usual):
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
        chosen.append((one.operand, worker, reason))
    return chosen
