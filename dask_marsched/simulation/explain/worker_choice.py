"""Which number of workers is worth its price."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dask.utils import format_time, parse_timedelta

from dask_marsched.simulation.explain.explanation import Size, WorkerChoice


@dataclasses.dataclass(frozen=True)
class Wish:
    """What the user wants to keep.

    Attributes
    ----------
    budget : float or None
        Workers times seconds.
    deadline : float or None
        Seconds.
    """

    budget: float | None
    deadline: float | None

    @staticmethod
    def of(budget: float | str | None, deadline: float | str | None) -> Wish:
        """Read what the user said.

        Raises
        ------
        ValueError
            If it is no duration above 0, or both are given.
        """
        if budget is not None and deadline is not None:
            raise ValueError("give budget or deadline, not both")
        return Wish(
            None if budget is None else seconds_of("budget", budget),
            None if deadline is None else seconds_of("deadline", deadline),
        )

    def choose(self, sizes: Sequence[Size]) -> WorkerChoice:
        """Return the best number of workers among those into which the computation fits."""
        fitting = [size for size in sizes if size.fits]
        if not fitting:
            return WorkerChoice(None, "It fits with none of these numbers of workers.")
        if self.deadline is not None:
            return self._in_time(fitting, self.deadline)
        if self.budget is not None:
            return self._affordable(fitting, self.budget)
        if len(sizes) == 1:
            return WorkerChoice(
                None, "Only one number of workers was simulated: there is no choice."
            )
        best = min(fitting, key=lambda size: (size.makespan * size.worker_seconds, size.workers))
        return WorkerChoice(
            best.workers,
            f"Best: {_workers(best)}, the knee of the curve: more cost more than the time they "
            "save, fewer take more time than they save (least makespan x worker-hours).",
        )

    @staticmethod
    def _in_time(fitting: list[Size], deadline: float) -> WorkerChoice:
        quick = [size for size in fitting if size.makespan <= deadline]
        if not quick:
            fastest = min(fitting, key=lambda size: (size.makespan, size.workers))
            return WorkerChoice(
                None,
                f"None of these is done in {_time(deadline)}; {_workers(fastest)} is nearest "
                f"with {_time(fastest.makespan)}.",
            )
        best = min(quick, key=lambda size: (size.worker_seconds, size.workers))
        return WorkerChoice(
            best.workers, f"Best: {_workers(best)}, the cheapest that is done in {_time(deadline)}."
        )

    @staticmethod
    def _affordable(fitting: list[Size], budget: float) -> WorkerChoice:
        cheap = [size for size in fitting if size.worker_seconds <= budget]
        if not cheap:
            least = min(fitting, key=lambda size: (size.worker_seconds, size.workers))
            return WorkerChoice(
                None,
                f"None of these costs at most {budget / 3600:.4g} worker-hours; {_workers(least)} "
                f"is nearest with {least.worker_seconds / 3600:.4g}.",
            )
        best = min(cheap, key=lambda size: (size.makespan, size.workers))
        return WorkerChoice(
            best.workers,
            f"Best: {_workers(best)}, the fastest for at most {budget / 3600:.4g} worker-hours.",
        )


def seconds_of(name: str, given: float | str, *, zero: bool = False) -> float:
    """Return a duration that the user gave under a name, in seconds.

    Raises
    ------
    ValueError
        If it is none, or negative, or 0 without ``zero``.
    """
    try:
        seconds = float(parse_timedelta(given))
    except (KeyError, ValueError, IndexError):  # whatever dask's parser meets first
        seconds = -1.0
    if not (seconds > 0 or (zero and seconds == 0)):
        least = "" if zero else " above 0"
        raise ValueError(
            f'{name} must be seconds{least} or a duration such as "2 hours", not {given!r}'
        )
    return seconds


def _workers(size: Size) -> str:
    return "1 worker" if size.workers == 1 else f"{size.workers} workers"


def _time(seconds: float) -> str:
    return format_time(seconds).strip()
