"""Simulates a computation with several memory limits and numbers of workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_marsched.simulation.explain.cluster_size import ClusterSize
from dask_marsched.simulation.explain.memory_need import (
    MemoryNeed,
    memory_need,
    round_up_to_orderable,
)
from dask_marsched.simulation.explain.results import PolicyForecast, Size
from dask_marsched.simulation.explain.runs import SimulationOutcome, SimulationRunner
from dask_marsched.simulation.report.report import SimulationReport

#: A memory limit that nothing reaches, in bytes.
AMPLE = 2**50
#: Number of memory limits that are simulated before the smallest one stays unverified.
_TRIES = 3


class ForecastRuns:
    """The simulations behind an explanation; ValueError or RuntimeError if no memory suffices."""

    def __init__(
        self,
        runner: SimulationRunner,
        temporaries: Mapping[Any, int],
        size: ClusterSize,
        policy: str,
        most: int,
    ) -> None:
        self._runner = runner
        self._temporaries = temporaries
        self._size = size
        policies = ("stock", policy)
        own = runner.run({name: {"policy": name} for name in policies}, must=True)
        #: By policy, a run that neither spilled nor paused, and the memory it needed.
        self.smooth_runs = self._run_smoothly(own)
        #: By policy the smallest limit that may fit, and whether a simulation has shown it.
        self._limits = {
            name: (round_up_to_orderable(need.limit), False)
            for name, (_, need) in self.smooth_runs.items()
        }
        first, second = self._unverified()[::-1]
        numbers = list(self._numbers(policy, most).items())
        # The verdict on the plugin's memory and the nearest numbers of workers come first.
        outcomes = runner.run(dict([first, *numbers[:2], second, *numbers[2:]]))
        self.sizes = self._sizes(policy, outcomes)  #: For other numbers of workers, fewest first.
        for _ in range(_TRIES):
            if not self._verify(outcomes):
                break
            outcomes = runner.run(dict(self._unverified()))
        #: By policy, for the user's cluster.
        self.forecasts = {name: self._forecast(name, own[name]) for name in policies}

    def _run_smoothly(
        self, own: Mapping[str, SimulationOutcome]
    ) -> dict[str, tuple[SimulationReport, MemoryNeed]]:
        titles = {
            name: f"{name} with ample memory"
            for name, outcome in own.items()
            if not _is_smooth(outcome)
        }
        ample = self._runner.run(
            {title: {"policy": name, "memory_limit": AMPLE} for name, title in titles.items()},
            must=True,
        )
        found = {}
        for name, outcome in own.items():
            if name in titles:
                outcome = ample[titles[name]]
            if outcome.report is None:
                assert outcome.error is not None
                raise outcome.error
            found[name] = outcome.report, memory_need(outcome.report, self._temporaries)
        return found

    def _unverified(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the simulations that test the limits which were not verified yet."""
        return [
            (_limit_title(name), {"policy": name, "memory_limit": limit})
            for name, (limit, verified) in self._limits.items()
            if not verified
        ]

    def _verify(self, outcomes: Mapping[str, SimulationOutcome]) -> bool:
        """Verify limits or raise those that were too small; return whether any was raised."""
        raised = False
        for name, (limit, verified) in self._limits.items():
            outcome = outcomes.get(_limit_title(name))
            if verified or outcome is None:
                continue
            fits = self._fits(outcome, limit)
            self._limits[name] = (limit if fits else round_up_to_orderable(limit + 1), fits)
            raised = raised or not fits
        return raised

    def _numbers(self, policy: str, most: int) -> dict[str, dict[str, Any]]:
        """Return the simulations of other numbers of workers, those near the user's first."""
        workers = self._size.workers
        numbers = {1 << i for i in range(most.bit_length())} | {most}
        numbers.discard(workers)
        near = sorted(numbers, key=lambda n: (max(n / workers, workers / n), n))
        return {
            f"{number} worker{'s' if number > 1 else ''}": {"policy": policy, "memory_limit": AMPLE}
            | self._size.with_workers(number)
            for number in near
        }

    def _sizes(self, policy: str, outcomes: Mapping[str, SimulationOutcome]) -> list[Size]:
        found = [self._size_of(*self.smooth_runs[policy])]
        for outcome in outcomes.values():
            report = outcome.report
            if report is not None and report.workers != self._size.workers:
                found.append(self._size_of(report, memory_need(report, self._temporaries)))
        return sorted(found, key=lambda size: size.workers)

    def _size_of(self, report: SimulationReport, need: MemoryNeed) -> Size:
        limit = round_up_to_orderable(need.limit)
        fits = need.limit <= self._size.memory_limit
        return Size(report.workers, report.makespan, need.held, limit, fits)

    def _fits(self, outcome: SimulationOutcome, limit: int) -> bool:
        if outcome.report is None or not _is_smooth(outcome):
            return False
        return memory_need(outcome.report, self._temporaries).limit <= limit

    def _forecast(self, policy: str, own: SimulationOutcome) -> PolicyForecast:
        report, need = self.smooth_runs[policy]
        limit, verified = self._limits[policy]
        shown = own.report or report
        return PolicyForecast(
            policy=policy,
            makespan=shown.makespan,
            bytes_moved=shown.bytes_moved,
            peak_memory=report.peak_memory,
            peak_per_worker=need.held,
            peak_with_tasks=need.total,
            bytes_spilled=shown.bytes_spilled,
            seconds_paused=shown.seconds_paused,
            fits=self._fits(own, self._size.memory_limit),
            smallest_limit=limit,
            verified=verified,
            error=str(own.error) if own.error else None,
        )


def _is_smooth(outcome: SimulationOutcome) -> bool:
    """Return whether no worker spilled or paused."""
    report = outcome.report
    return report is not None and not report.bytes_spilled and not report.seconds_paused


def _limit_title(policy: str) -> str:
    return f"smallest limit of {policy}"
