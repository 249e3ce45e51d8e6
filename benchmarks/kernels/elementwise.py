"""Times elementwise programs over arrays in memory: on new clusters, and when they are warm."""

from __future__ import annotations

import contextlib
import gc
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dask
from distributed import wait

from benchmarks.kernels.expressions import DESIGN, REAL
from dask_marsched.bench.cluster import BenchCluster, Setting
from dask_marsched.bench.metrics import STOCK, geometric_mean, median
from dask_marsched.bench.workloads import random_grid

BAR_COLD, BAR_WARM, BAR_WORST = 1.0, 0.45, 0.97
#: Chunks of each of the three arrays, at size 1.
CHUNKS = 24
#: Runs after the first one in which expressions may still be compiled, and runs after those.
NEXT, WARM = 9, 3

_EXPRESSIONS = DESIGN | REAL
#: Expression and what is made of it: seven programs.
PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "rosenbrock": lambda e: e.max(),
    "index": lambda e: e.mean(),
    "evi": lambda e: e.mean(axis=0),
    "calibration": lambda e: e.std(),
    "logarithm": lambda e: e.sum(),
    "cloud mask": lambda e: e.sum(axis=1),
    "haversine": lambda e: e.min(),
}


@dataclass(frozen=True)
class Run:
    """One run of a program; ``when`` is cold, next or warm."""

    program: str
    policy: str
    when: str
    seconds: float


def run(
    names: Sequence[str],
    policies: Sequence[str],
    repeat: int,
    setting: Setting,
    progress: Callable[[Run], None] = lambda _: None,
) -> list[Run]:
    """Run each program under each policy in turn, on new clusters without compiled kernels.

    The first run on a cluster is cold. During the next ones kernels are compiled and compared with
    NumPy; the last ones are warm.
    """
    unknown = [name for name in names if name not in PROGRAMS]
    if unknown:
        raise ValueError(f"no program {unknown[0]!r}; there are {', '.join(PROGRAMS)}")
    runs = []
    for name in names or PROGRAMS:
        for turn in range(repeat):
            for policy in policies[:: -1 if turn % 2 else 1]:
                for number, seconds in enumerate(_runs(name, policy, setting)):
                    when = "warm" if number > NEXT else "next" if number else "cold"
                    runs.append(Run(name, policy, when, seconds))
                    progress(runs[-1])
    return runs


def _runs(name: str, policy: str, setting: Setting) -> list[float]:
    """Return the seconds of all runs on a new cluster."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as cache,
        dask.config.set({"marsched.fusion.cache": cache}),
        contextlib.closing(BenchCluster(policy, setting, ())) as cluster,
    ):
        cluster.open()
        client = cluster.client
        assert client is not None
        with client.as_current():
            rows = setting.parameters.count(CHUNKS)
            grids = [random_grid(setting.parameters, seed, rows, 1) + 0.5 for seed in (51, 52, 53)]
            inputs = client.persist(grids)
            wait(inputs)
            return [_seconds(name, client, inputs) for _ in range(1 + NEXT + WARM)]


def _seconds(name: str, client: Any, inputs: Sequence[Any]) -> float:
    gc.collect()
    start = time.perf_counter()
    client.compute(PROGRAMS[name](_EXPRESSIONS[name](*inputs))).result()
    return time.perf_counter() - start


def cells(runs: Sequence[Run]) -> list[list[str]]:
    """Return the table of medians and their ratios to stock's, its head first."""
    table = [["program", "when", "policy", "ms", "x", "verdict"]]
    policies = list(dict.fromkeys(r.policy for r in runs))
    for when, mean_bar in (("cold", BAR_COLD), ("next", math.inf), ("warm", BAR_WARM)):
        ratios: dict[str, list[float]] = {policy: [] for policy in policies}
        worst = max(mean_bar, BAR_WORST)
        for name in dict.fromkeys(r.program for r in runs):
            found = {p: _typical(runs, name, p, when) for p in policies}
            for policy, seconds in found.items():
                ratio = seconds / found.get(STOCK, math.nan)
                ratios[policy].append(ratio)
                row = [name, when, policy, f"{1e3 * seconds:.0f}", f"{ratio:.2f}"]
                table.append([*row, _verdict(policy, ratio, worst)])
        for policy in policies:
            mean = geometric_mean(ratios[policy]) or math.nan
            row = ["geometric mean", when, policy, "", f"{mean:.2f}"]
            table.append([*row, _verdict(policy, mean, mean_bar)])
    return table


def _typical(runs: Sequence[Run], name: str, policy: str, when: str) -> float:
    same = (name, policy, when)
    found = [r.seconds for r in runs if (r.program, r.policy, r.when) == same]
    return median(found) or math.nan


def _verdict(policy: str, ratio: float, bar: float) -> str:
    no_bar = policy == STOCK or bar == math.inf
    return "-" if no_bar else "met" if ratio <= bar else "not met"
