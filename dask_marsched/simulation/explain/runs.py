"""Several simulations of one graph, in a bounded time."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dask_marsched.simulation import isolation
from dask_marsched.simulation.report.report import SimulationReport
from dask_marsched.simulation.simulate import simulate

#: Tasks from which on simulations run in two processes: below, starting one takes longer.
_LARGE = 5_000


@dataclasses.dataclass(frozen=True)
class SimulationOutcome:
    """What came out of one simulation.

    Attributes
    ----------
    report : SimulationReport or None
        None if the simulated computation could not be done.
    error : Exception or None
        Why not.
    seconds : float
        How long the simulation itself took.
    """

    report: SimulationReport | None
    error: Exception | None
    seconds: float


class SimulationRunner:
    """Simulates one computation on several clusters.

    Parameters
    ----------
    collections
        What is computed.
    tasks
        Number of its tasks.
    arguments
        Arguments of `simulate` that all simulations share.
    seconds
        After this time none is started any more unless it must be.
    parallel
        Whether processes of their own may be started for large graphs.

    Attributes
    ----------
    skipped : list of str
        Names of the simulations that were left out for lack of time.
    done : int
        Number of simulations.
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
        self.done = 0
        self._arguments = {"collection": collections, **arguments}
        self._deadline = time.monotonic() + seconds
        cores = os.cpu_count() or 1
        self._processes = min(2, cores) if parallel and tasks > _LARGE else 1
        self._longest = 0.0

    @property
    def has_default_policy(self) -> bool:
        """Whether what is simulated is the plugin as it comes."""
        return bool(self._arguments.get("policy", "default") == "default")

    def run(
        self, wanted: Mapping[str, Mapping[str, Any]], *, must: bool = False
    ) -> dict[str, SimulationOutcome]:
        """Simulate what is wanted, in this order, as long as time is left.

        Parameters
        ----------
        wanted
            By a name for each, the arguments of `simulate` in which it differs.
        must
            Whether to simulate all of it, time or no time.

        Returns
        -------
        dict of str to SimulationOutcome
            Those that were simulated.
        """
        names = list(wanted)
        shares = [names[i :: self._processes] for i in range(self._processes)]
        left = float("inf") if must else self._deadline - time.monotonic()
        batches = [
            _Batch(
                [(name, self._arguments | dict(wanted[name])) for name in share],
                left,
                self._longest,
            )
            for share in shares
            if share and left > self._longest
        ]
        if len(batches) < 2:
            found = [batch.run() for batch in batches]
        else:
            with ThreadPoolExecutor(len(batches)) as pool:
                found = list(pool.map(lambda batch: isolation.call(batch.run, True), batches))
        outcomes = {name: outcome for part in found for name, outcome in part.items()}
        self._longest = max([self._longest, *(o.seconds for o in outcomes.values())])
        self.done += len(outcomes)
        self.skipped += [name for name in names if name not in outcomes]
        return {name: outcomes[name] for name in names if name in outcomes}


@dataclasses.dataclass(frozen=True)
class _Batch:
    """Simulations that one process does one after the other."""

    wanted: list[tuple[str, dict[str, Any]]]
    seconds: float
    longest: float

    def run(self) -> dict[str, SimulationOutcome]:
        deadline = time.monotonic() + self.seconds
        longest = self.longest
        outcomes: dict[str, SimulationOutcome] = {}
        for name, arguments in self.wanted:
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
