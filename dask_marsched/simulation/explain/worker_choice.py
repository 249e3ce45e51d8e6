"""Chooses the number of workers for a budget, for a deadline, or at the knee of the curve."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

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
            words = f"the cheapest that is done in {limit}", f"None of these is done in {limit}"
            return _within(fitting, self.deadline, ("makespan", "worker_seconds"), words, _time)
        if self.budget is not None:
            limit = f"{_hours(self.budget)} worker-hours"
            words = f"the fastest for at most {limit}", f"None of these costs at most {limit}"
            return _within(fitting, self.budget, ("worker_seconds", "makespan"), words, _hours)
        if len(sizes) == 1:
            reason = "Only one number of workers was simulated: there is no choice."
            return WorkerChoice(None, reason)
        best = min(fitting, key=lambda size: (size.makespan * size.worker_seconds, size.workers))
        return WorkerChoice(
            best.workers,
            f"Best: {_workers(best)}, the knee of the curve: more cost more than the time they "
            "save, fewer take more time than they save (least makespan x worker-hours).",
        )


def _within(
    sizes: Sequence[Size],
    limit: float,
    names: tuple[str, str],
    words: tuple[str, str],
    show: Callable[[float], str],
) -> WorkerChoice:
    """Return the best size within a limit, or none and the nearest one.

    ``names`` are the attribute that is limited and the one to minimize, ``words`` those for a size
    within the limit and for none.
    """
    (limited, minimized), (kept, missed) = names, words
    within = [size for size in sizes if getattr(size, limited) <= limit]
    name = minimized if within else limited
    best = min(within or sizes, key=lambda size: (getattr(size, name), size.workers))
    if within:
        return WorkerChoice(best.workers, f"Best: {_workers(best)}, {kept}.")
    nearest = f"{_workers(best)} is nearest with {show(getattr(best, limited))}"
    return WorkerChoice(None, f"{missed}; {nearest}.")


def _workers(size: Size) -> str:
    return "1 worker" if size.workers == 1 else f"{size.workers} workers"


def _time(seconds: float) -> str:
    return format_time(seconds).strip()


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.4g}"
