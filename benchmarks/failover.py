"""Measures the cost of a worker killed in the middle of a run, with and without adoption.

A worker process is killed by SIGKILL when half of the tasks have run, so that the moment does not
depend on the machine's speed. Each run is on a fresh cluster, and its results are compared
with those of an undisturbed run.
"""

from __future__ import annotations

import logging
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from distributed import Client, LocalCluster, wait

from benchmarks.workloads import Parameters, get
from dask_marsched.bench.killer import Killer
from dask_marsched.bench.metrics import STOCK, digest

WORKLOADS = ("anomaly", "standardise", "vorticity", "quadratic-means", "add-transpose")
OURS = "adopt"
CONTESTANTS = (STOCK, OURS)
MIB = 1 << 20


@dataclass(frozen=True)
class Killed:
    """A run in whose middle a worker was killed.

    Attributes
    ----------
    workload, contestant, repetition
        What ran, under which of `CONTESTANTS`, from 0.
    tasks : int
        Tasks of the graph.
    again : int
        Tasks that were computed again although they had a result.
    lost : int
        Results that the killed worker alone had.
    seconds, undisturbed : float
        Wall time of this run, and of one on the same cluster before it without a kill.
    same : bool
        Whether the results are bit-identical to those of the undisturbed run.
    error : str or None
        Why there are no results.
    """

    workload: str
    contestant: str
    repetition: int
    tasks: int = 0
    again: int = 0
    lost: int = 0
    seconds: float = math.nan
    undisturbed: float = math.nan
    same: bool = False
    error: str | None = None


def _plugin(contestant: str) -> Any:
    if contestant == STOCK:
        return None
    from dask_marsched.config import Settings
    from dask_marsched.scheduler_plugin import MarsSchedulerPlugin

    settings = Settings.from_config().replace(adopt="all")
    return MarsSchedulerPlugin(settings=settings)


def _keeps(dask_worker: Any) -> bool:
    plugin = dask_worker.plugins.get("marsched")
    return plugin is not None and plugin.report()["shared"] is not None


def measure(
    name: str,
    contestant: str,
    repetition: int,
    parameters: Parameters,
    workers: int,
    timeout: float,
) -> Killed:
    """Run a workload on a fresh cluster, undisturbed and then with a kill in its middle."""
    with (
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        plugin = _plugin(contestant)
        if plugin is not None:
            client.register_plugin(plugin)
            deadline = time.monotonic() + 30
            while not all(client.run(_keeps).values()):
                if time.monotonic() > deadline:
                    return Killed(name, contestant, repetition, error="nothing is shared")
                time.sleep(0.05)
        killer = Killer({})
        # The scheduler is in this process: the object that it is given is this one.
        cluster.loop.add_callback(cluster.scheduler.add_plugin, killer)
        killer.scheduler = cluster.scheduler
        found = []
        for kills in (False, True):
            killer.pids = client.run(os.getpid) if kills else {}
            start = time.perf_counter()
            futures = client.compute(list(get(name).build(parameters)))
            wait(futures, timeout=timeout)
            seconds = time.perf_counter() - start
            found.append((seconds, digest(client.gather(futures))))
            del futures
            while cluster.scheduler.tasks:
                time.sleep(0.01)
        return Killed(
            name,
            contestant,
            repetition,
            tasks=killer.total,
            again=killer.again,
            lost=killer.lost,
            seconds=found[1][0],
            undisturbed=found[0][0],
            same=found[0][1] == found[1][1],
        )


def run(
    chosen: Sequence[str],
    repeat: int,
    parameters: Parameters,
    *,
    workers: int,
    timeout: float,
    progress: Callable[[Killed], None] = lambda _: None,
) -> list[Killed]:
    """Kill a worker in each workload under each contestant, by turns."""
    runs = []
    for repetition in range(repeat):
        for position, name in enumerate(chosen or WORKLOADS):
            turn = -1 if (position + repetition) % 2 else 1
            for contestant in CONTESTANTS[::turn]:
                try:
                    killed = measure(name, contestant, repetition, parameters, workers, timeout)
                except Exception as error:
                    reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                    killed = Killed(name, contestant, repetition, error=reason)
                runs.append(killed)
                progress(killed)
    return runs


def cells(runs: Sequence[Killed]) -> list[list[str]]:
    """Return the table: medians of the repetitions, and the geometric mean of the quotients."""
    head = ["workload", "tasks", "again, stock", "ours", "kill, stock s", "ours s", "wall", "same"]
    table = [[*head[:3], "again, ours", *head[4:5], "kill, ours s", *head[6:]]]
    shares, walls = [], []
    for name in dict.fromkeys(r.workload for r in runs):
        own = {c: [r for r in runs if (r.workload, r.contestant) == (name, c)] for c in CONTESTANTS}
        good = {c: [r for r in found if r.error is None] for c, found in own.items()}
        if not all(good.values()):
            table.append([name, "failed", *[""] * 6])
            continue
        again = {c: statistics.mean(r.again for r in found) for c, found in good.items()}
        wall = {c: statistics.median(r.seconds for r in found) for c, found in good.items()}
        # Half a task stands for none: a mean of logarithms knows no zero.
        shares.append(max(again[OURS], 0.5) / max(again[STOCK], 0.5))
        walls.append(wall[OURS] / wall[STOCK])
        same = sum(r.same for found in good.values() for r in found)
        table.append(
            [
                name,
                str(good[STOCK][0].tasks),
                f"{again[STOCK]:.1f}",
                f"{again[OURS]:.1f}",
                f"{wall[STOCK]:.2f}",
                f"{wall[OURS]:.2f}",
                f"{walls[-1]:.2f}",
                f"{same}/{sum(map(len, own.values()))}",
            ]
        )
    if shares:
        means = [statistics.geometric_mean(shares), statistics.geometric_mean(walls)]
        table.append(
            ["geometric mean", "", "", f"{means[0]:.3f} of stock", "", "", f"{means[1]:.2f}", ""]
        )
    return table
