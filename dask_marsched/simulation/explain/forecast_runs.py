"""The simulations behind an explanation, in the order of what they are worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_marsched.simulation.explain.cluster_size import ClusterSize
from dask_marsched.simulation.explain.explanation import PolicyForecast, Size
from dask_marsched.simulation.explain.memory_need import (
    MemoryNeed,
    memory_need,
    next_orderable,
    round_up_to_orderable,
)
from dask_marsched.simulation.explain.runs import SimulationOutcome, SimulationRunner
from dask_marsched.simulation.report.report import SimulationReport

#: A memory limit that nothing reaches, in bytes.
AMPLE = 2**50
#: Larger limits that are tried before the smallest one is left unverified.
_TRIES = 3


class ForecastRuns:
    """Asks the twin about one computation.

    Parameters
    ----------
    runner
        Simulates it.
    temporaries
        Bytes of intermediate results inside tasks, by key.
    size
        The user's cluster.
    policy
        The plugin's policy that stands beside stock Dask.
    most
        Largest number of workers to try.

    Attributes
    ----------
    undisturbed : dict of str to (SimulationReport, MemoryNeed)
        By policy, a run in which memory was no matter, and what it needed.
    forecasts : dict of str to PolicyForecast
        By policy, what to expect on the user's cluster.
    sizes : list of Size
        What the plugin does with other numbers of workers, fewest first.

    Raises
    ------
    ValueError, RuntimeError
        If the computation cannot be simulated however much memory there is.
    """

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
        self._policies = ["stock", policy]
        self.undisturbed: dict[str, tuple[SimulationReport, MemoryNeed]] = {}
        own = runner.run({name: {"policy": name} for name in self._policies}, must=True)
        self._find_undisturbed(own)
        limits = {
            name: (round_up_to_orderable(need.limit), False)
            for name, (_, need) in self.undisturbed.items()
        }
        limit = self._limits_to_try([policy, "stock"], limits)
        first, second = limit.items()
        numbers = list(self._numbers(policy, most).items())
        # The verdict on the plugin's memory and the nearest numbers of workers come first.
        wanted = dict([first, *numbers[:2], second, *numbers[2:]])
        outcomes = runner.run(wanted)
        self.sizes = self._sizes(policy, outcomes)
        for _ in range(_TRIES):
            if not self._judge(limits, outcomes):
                break
            open_ = [name for name, (_, verified) in limits.items() if not verified]
            outcomes = runner.run(self._limits_to_try(open_, limits))
        self.forecasts = {
            name: self._forecast(name, own[name], *limits[name]) for name in self._policies
        }

    def _find_undisturbed(self, own: Mapping[str, SimulationOutcome]) -> None:
        crowded = [name for name in self._policies if not _is_smooth(own[name])]
        title = "{} with ample memory"
        wanted = {title.format(name): {"policy": name, "memory_limit": AMPLE} for name in crowded}
        ample = self._runner.run(wanted, must=True)
        for name in self._policies:
            outcome = ample.get(title.format(name), own[name])
            if outcome.report is None:
                assert outcome.error is not None
                raise outcome.error
            self.undisturbed[name] = outcome.report, memory_need(outcome.report, self._temporaries)

    def _limits_to_try(
        self, policies: list[str], limits: Mapping[str, tuple[int, bool]]
    ) -> dict[str, dict[str, Any]]:
        return {
            _limit_title(name): {"policy": name, "memory_limit": limits[name][0]}
            for name in policies
        }

    def _judge(
        self, limits: dict[str, tuple[int, bool]], outcomes: Mapping[str, SimulationOutcome]
    ) -> bool:
        """Verify limits, or raise those with which it does not fit; return whether any was."""
        raised = False
        for name, (limit, verified) in limits.items():
            outcome = outcomes.get(_limit_title(name))
            if verified or outcome is None:
                continue
            if self._fits(outcome, limit):
                limits[name] = limit, True
            else:
                limits[name] = next_orderable(limit), False
                raised = True
        return raised

    def _numbers(self, policy: str, most: int) -> dict[str, dict[str, Any]]:
        """Return the numbers of workers to try, those near the user's first."""
        workers = self._size.workers
        numbers = {1 << i for i in range(most.bit_length())} | {most}
        numbers.discard(workers)
        near = sorted(numbers, key=lambda n: (max(n / workers, workers / n), n))
        return {
            _name(number): {"policy": policy, "memory_limit": AMPLE}
            | self._size.with_workers(number)
            for number in near
        }

    def _sizes(self, policy: str, outcomes: Mapping[str, SimulationOutcome]) -> list[Size]:
        found = [self._size_of(*self.undisturbed[policy])]
        for outcome in outcomes.values():
            report = outcome.report
            if report is not None and report.workers != self._size.workers:
                found.append(self._size_of(report, memory_need(report, self._temporaries)))
        return sorted(found, key=lambda size: size.workers)

    def _size_of(self, report: SimulationReport, need: MemoryNeed) -> Size:
        fits = need.limit <= self._size.memory_limit
        return Size(
            report.workers, report.makespan, need.held, round_up_to_orderable(need.limit), fits
        )

    def _fits(self, outcome: SimulationOutcome, limit: int) -> bool:
        if outcome.report is None or not _is_smooth(outcome):
            return False
        return memory_need(outcome.report, self._temporaries).limit <= limit

    def _forecast(
        self, policy: str, own: SimulationOutcome, limit: int, verified: bool
    ) -> PolicyForecast:
        report, need = self.undisturbed[policy]
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
    """Tell whether memory did not matter."""
    report = outcome.report
    return report is not None and not report.bytes_spilled and not report.seconds_paused


def _name(workers: int) -> str:
    return f"{workers} worker{'s' if workers > 1 else ''}"


def _limit_title(policy: str) -> str:
    return f"smallest limit of {policy}"
