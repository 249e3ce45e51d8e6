"""Chooses the number of workers for a budget, for a deadline, or at the knee of the curve."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dask.utils import format_time

from dask_marsched.simulation.amounts import read_seconds
from dask_marsched.simulation.explain.results import Size, WorkerChoice


@dataclasses.dataclass(frozen=True)
class Target:
    """What the user wants to keep: workers times seconds, or seconds; at most one of them."""

    budget: float | None
    deadline: float | None

    @staticmethod
    def parse(budget: float | str | None, deadline: float | str | None) -> Target:
        """Parse the arguments of `explain`; ValueError for no duration above 0, or both."""
        if budget is not None and deadline is not None:
            raise ValueError("give budget or deadline, not both")
        return Target(
            None if budget is None else read_seconds("budget", budget),
            None if deadline is None else read_seconds("deadline", deadline),
        )

    def choose(self, sizes: Sequence[Size]) -> WorkerChoice:
        """Return the best number of workers among those into which the computation fits."""
        fitting = [size for size in sizes if size.fits]
        if not fitting:
            return WorkerChoice(None, "It fits with none of these numbers of workers.")
        if self.deadline is not None:
            limit = _time(self.deadline)
            best, kept = _best_within(fitting, self.deadline, "makespan", "worker_seconds")
            if kept:
                return WorkerChoice(
                    best.workers, f"Best: {_workers(best)}, the cheapest that is done in {limit}."
                )
            return WorkerChoice(
                None,
                f"None of these is done in {limit}; {_workers(best)} is nearest "
                f"with {_time(best.makespan)}.",
            )
        if self.budget is not None:
            limit = f"{self.budget / 3600:.4g} worker-hours"
            best, kept = _best_within(fitting, self.budget, "worker_seconds", "makespan")
            if kept:
                return WorkerChoice(
                    best.workers, f"Best: {_workers(best)}, the fastest for at most {limit}."
                )
            return WorkerChoice(
                None,
                f"None of these costs at most {limit}; {_workers(best)} "
                f"is nearest with {best.worker_seconds / 3600:.4g}.",
            )
        if len(sizes) == 1:
            reason = "Only one number of workers was simulated: there is no choice."
            return WorkerChoice(None, reason)
        best = min(fitting, key=lambda size: (size.makespan * size.worker_seconds, size.workers))
        return WorkerChoice(
            best.workers,
            f"Best: {_workers(best)}, the knee of the curve: more cost more than the time they "
            "save, fewer take more time than they save (least makespan x worker-hours).",
        )


def _best_within(
    sizes: Sequence[Size], limit: float, limited: str, minimized: str
) -> tuple[Size, bool]:
    """Return the best size within a limit and True, or the nearest one and False.

    ``limited`` and ``minimized`` are attributes of a size.
    """
    within = [size for size in sizes if getattr(size, limited) <= limit]
    name = minimized if within else limited
    best = min(within or sizes, key=lambda size: (getattr(size, name), size.workers))
    return best, bool(within)


def _workers(size: Size) -> str:
    return "1 worker" if size.workers == 1 else f"{size.workers} workers"


def _time(seconds: float) -> str:
    return format_time(seconds).strip()
