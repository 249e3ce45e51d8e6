"""Runs several simulations of one graph in a bounded time."""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dask_marsched.simulation import isolation
from dask_marsched.simulation.report.report import SimulationReport
from dask_marsched.simulation.simulate import simulate

#: Graphs with more tasks are simulated in two processes; for smaller ones starting one costs more.
_LARGE = 5_000


@dataclasses.dataclass(frozen=True)
class SimulationOutcome:
    """The report or the error of one simulation, and the seconds that it took."""

    report: SimulationReport | None
    error: Exception | None
    seconds: float


class SimulationRunner:
    """Simulates one computation with changed ``arguments`` while time is left.

    ``parallel`` allows processes for large graphs; ``skipped`` names what was left out.
    """

    def __init__(
        self,
        collections: list[Any],
        tasks: int,
        arguments: Mapping[str, Any],
        seconds: float,
        parallel: bool,
    ) -> None:
        self.skipped: list[str] = []
        self._arguments = {"collection": collections, **arguments}
        self._deadline = time.monotonic() + seconds
        self._processes = min(2, os.cpu_count() or 1) if parallel and tasks > _LARGE else 1
        self._longest = 0.0

    def run(
        self, wanted: Mapping[str, Mapping[str, Any]], *, must: bool = False
    ) -> dict[str, SimulationOutcome]:
        """Simulate with changed arguments, by name, until the time is up, or all with ``must``."""
        names = list(wanted)
        left = float("inf") if must else self._deadline - time.monotonic()
        batches = [
            functools.partial(
                _run_batch,
                [(name, self._arguments | dict(wanted[name])) for name in share],
                left,
                self._longest,
            )
            for share in (names[i :: self._processes] for i in range(self._processes))
            if share and left > self._longest
        ]
        if len(batches) < 2:
            found = [batch() for batch in batches]
        else:
            with ThreadPoolExecutor(len(batches)) as pool:
                found = list(pool.map(lambda batch: isolation.call(batch, True), batches))
        outcomes = {name: outcome for part in found for name, outcome in part.items()}
        self._longest = max([self._longest, *(o.seconds for o in outcomes.values())])
        self.skipped += [name for name in names if name not in outcomes]
        return {name: outcomes[name] for name in names if name in outcomes}


def _run_batch(
    wanted: list[tuple[str, dict[str, Any]]], seconds: float, longest: float
) -> dict[str, SimulationOutcome]:
    """Run simulations one after the other, as long as time is left."""
    deadline = time.monotonic() + seconds
    outcomes: dict[str, SimulationOutcome] = {}
    for name, arguments in wanted:
        began = time.monotonic()
        if began + longest > deadline:
            break
        report = error = None
        try:
            report = simulate(isolated=False, **arguments)
        except (ValueError, RuntimeError) as problem:
            error = problem
        outcomes[name] = SimulationOutcome(report, error, time.monotonic() - began)
        longest = max(longest, outcomes[name].seconds)
    return outcomes
