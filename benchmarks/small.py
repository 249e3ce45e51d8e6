"""Times small programs under each policy in turn, on warm clusters."""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks import workloads
from benchmarks.workloads import Kind, Workload
from dask_marsched.bench.cluster import BenchCluster, Setting
from dask_marsched.bench.metrics import STOCK, geometric_mean, median

BAR_MEAN, BAR_WORST = 0.95, 1.05
#: Of the size of a workload.
SIZE = 0.1
#: Calls one after the other, each of the result of the last one.
LOOP, CALLS = "submit-loop", 100


@dataclass(frozen=True)
class Run:
    """One run of a small program: its seconds, from the client's call to the results there."""

    workload: str
    policy: str
    seconds: float


def chosen() -> tuple[Workload, ...]:
    """Return the workloads that run by default: all with data, and the interactive ones."""
    found = workloads.select(kinds=(Kind.DATA, Kind.INTERACTIVE))
    return tuple(w for w in found if not w.missing())


def run(
    names: Sequence[str],
    policies: Sequence[str],
    repeat: int,
    setting: Setting,
    progress: Callable[[Run], None] = lambda _: None,
) -> list[Run]:
    """Run each program ``repeat`` times under each policy in turn, after two runs not counted."""
    setting = replace(setting, parameters=replace(setting.parameters, size=SIZE))
    programs = workloads.select(names) if names else chosen()
    measures: dict[str, Callable[[BenchCluster], float]] = {
        workload.name: functools.partial(_seconds, workload) for workload in programs
    }
    if not names:
        measures[LOOP] = _loop
    runs = []
    with contextlib.ExitStack() as stack:
        clusters = [stack.enter_context(BenchCluster(p, setting, programs)) for p in policies]
        for name, measure in measures.items():
            for repetition in range(-2, repeat):
                for cluster in clusters[:: -1 if repetition % 2 else 1]:
                    found = Run(name, cluster.policy, measure(cluster))
                    if repetition >= 0:
                        runs.append(found)
                        progress(found)
    return runs


def _seconds(workload: Workload, cluster: BenchCluster) -> float:
    client, parameters = cluster.client, cluster.setting.parameters
    assert client is not None
    with client.as_current():
        inputs = workload.inputs(parameters)
        if workload.persist and inputs:
            inputs = tuple(client.persist(list(inputs)))
            client.gather(client.compute([x.sum() for x in inputs]))
        gc.collect()
        start = time.perf_counter()
        client.gather(client.compute(list(workload.expression(parameters, *inputs))))
        seconds = time.perf_counter() - start
    del inputs
    cluster.settle(client)
    return seconds


def _increment(i: int) -> int:
    return i + 1


def _loop(cluster: BenchCluster) -> float:
    client, value = cluster.client, 0
    assert client is not None
    start = time.perf_counter()
    for _ in range(CALLS):
        value = client.submit(_increment, value, pure=False).result()
    return time.perf_counter() - start


def cells(runs: Sequence[Run]) -> list[list[str]]:
    """Return the table of medians and their ratios to stock's, its head first."""
    table = [["program", "policy", "ms", "x", "verdict"]]
    policies = list(dict.fromkeys(r.policy for r in runs))
    ratios: dict[str, list[float]] = {policy: [] for policy in policies}
    for name in dict.fromkeys(r.workload for r in runs):
        found = {
            policy: median(r.seconds for r in runs if (r.workload, r.policy) == (name, policy))
            or math.nan
            for policy in policies
        }
        for policy, seconds in found.items():
            ratio = seconds / found.get(STOCK, math.nan)
            ratios[policy].append(ratio)
            verdict = "-" if policy == STOCK else "met" if ratio <= BAR_WORST else "not met"
            table.append([name, policy, f"{1e3 * seconds:.0f}", f"{ratio:.2f}", verdict])
    for policy in policies:
        mean = geometric_mean(ratios[policy]) or math.nan
        verdict = "-" if policy == STOCK else "met" if mean <= BAR_MEAN else "not met"
        table.append(["geometric mean", policy, "", f"{mean:.2f}", verdict])
    return table
