"""Finds the least memory limit with which a workload runs, for stock Dask and for the plugin.

The least is found by bisection over the memory limit of the workers. A limit suffices if all runs
end without an error and without a worker that had to be replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.memory_tight import (
    CONTESTANTS,
    MEMORY_LIMIT,
    WORKLOADS,
    TightRun,
    check_names,
    measure,
)

#: Where the search begins and ends, and how exact it is, bytes.
LOWEST, HIGHEST, STEP = 200_000_000, 4 * MEMORY_LIMIT, 50_000_000


@dataclass(frozen=True)
class Least:
    """The least memory limit of the workers found for a workload.

    Attributes
    ----------
    limit
        Bytes; None where not even the highest that was tried suffices.
    runs
        All runs, with the memory limit of each.
    """

    workload: str
    contestant: str
    limit: int | None
    runs: tuple[tuple[int, TightRun], ...]


def bisect(suffices: Callable[[int], bool], lowest: int, highest: int, step: int) -> int | None:
    """Return a number that suffices where one less by a step does not; None if `highest` does not.

    `lowest` is taken not to suffice.
    """
    if not suffices(highest):
        return None
    while highest - lowest > step:
        middle = lowest + (highest - lowest) // 2 // step * step
        if middle == lowest:
            middle += step
        if suffices(middle):
            highest = middle
        else:
            lowest = middle
    return highest


def find(
    workload: str,
    contestant: str,
    repeat: int,
    size: float,
    timeout: float,
    progress: Callable[[int, TightRun], None],
) -> Least:
    """Find the least memory limit with which a workload comes through `repeat` times.

    Parameters
    ----------
    workload, contestant, size, timeout
        As for `benchmarks.memory_tight.measure`.
    repeat
        How often it must come through with a limit.
    progress
        Called with the limit and each run.
    """
    runs: list[tuple[int, TightRun]] = []

    def suffices(limit: int) -> bool:
        for repetition in range(repeat):
            run = measure(workload, contestant, repetition, size, timeout, limit)
            runs.append((limit, run))
            progress(limit, run)
            if run.error or run.restarts:
                return False
        return True

    limit = bisect(suffices, LOWEST, HIGHEST, STEP)
    return Least(workload, contestant, limit, tuple(runs))


def find_all(
    names: Sequence[str],
    contestants: Sequence[str],
    repeat: int,
    size: float,
    timeout: float,
    progress: Callable[[int, TightRun], None],
) -> list[Least]:
    """Find it for each workload and contestant.

    Raises
    ------
    ValueError
        A name is unknown; the message lists those there are.
    """
    check_names(names, contestants)
    return [
        find(workload, contestant, repeat, size, timeout, progress)
        for workload in names or WORKLOADS
        for contestant in contestants
    ]


def cells(found: Sequence[Least]) -> list[list[str]]:
    """Return the table: a line for each workload, a column for each contestant, MB."""
    contestants = [c for c in CONTESTANTS if any(least.contestant == c for least in found)]
    table = [["workload", *(f"{c}, MB" for c in contestants), "ours / stock"]]
    for workload in dict.fromkeys(least.workload for least in found):
        limits = {least.contestant: least.limit for least in found if least.workload == workload}
        stock, ours = limits.get("stock"), limits.get("default")
        shown = [f"{limit / 1e6:.0f}" if (limit := limits.get(c)) else "" for c in contestants]
        table.append([workload, *shown, f"{ours / stock:.2f}" if stock and ours else ""])
    return table
