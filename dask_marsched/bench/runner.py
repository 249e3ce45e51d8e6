"""Runs every workload under every policy in turn, for several repetitions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dask_marsched.bench.cluster import BenchCluster, Setting
from dask_marsched.bench.metrics import Measurement
from dask_marsched.bench.workloads import Workload

#: Opens a policy's cluster, which has `BenchCluster`'s ``with``, `measure`, `report` and `policy`.
Opener = Callable[[str, Setting, tuple[Workload, ...]], Any]


@dataclass
class Outcome:
    """All measurements in their order, and the plugin's report after each repetition."""

    measurements: list[Measurement] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)


def run(
    chosen: tuple[Workload, ...],
    policies: Sequence[str],
    repeat: int,
    setting: Setting,
    progress: Callable[[Measurement], None] = lambda _: None,
    openers: dict[str, Opener] | None = None,
) -> Outcome:
    """Measure workloads under policies in alternation.

    Each repetition starts a fresh cluster for each policy. All stay alive through the repetition,
    and only one is at work at any time: each workload runs under each policy before the next
    workload begins. So all policies see the same state of the machine, and their clusters have the
    same past. The order of the policies is reversed from one workload to the next and from one
    repetition to the next, so that no policy always comes first.

    ``progress`` is called with each measurement, failed ones included. ``openers`` are functions
    that open a policy's cluster, if that is not a `BenchCluster`.
    """
    outcome = Outcome()
    for repetition in range(repeat):
        order = list(policies) if repetition % 2 == 0 else list(reversed(policies))
        with contextlib.ExitStack() as stack:
            contestants = []
            for policy in order:
                opener = (openers or {}).get(policy, BenchCluster)
                contestants.append(stack.enter_context(opener(policy, setting, chosen)))
            for position, workload in enumerate(chosen):
                turn = -1 if position % 2 else 1  # the first one is at a disadvantage
                for contestant in contestants[::turn]:
                    measurement = contestant.measure(workload, repetition)
                    outcome.measurements.append(measurement)
                    progress(measurement)
            for contestant in contestants:
                report = contestant.report()
                if report is not None:
                    entry = {"policy": contestant.policy, "repetition": repetition, **report}
                    outcome.reports.append(entry)
    return outcome
