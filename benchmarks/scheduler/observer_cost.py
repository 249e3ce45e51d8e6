"""Measures the observer's cost for a real scheduler, with all pages closed.

On one cluster of processes the same graph of tiny tasks is computed again and again: with observer,
pages and JSON API, all closed, and without them, the plugin registered anew each time. What counts
is the processor time of the scheduler's event loop, which other programs on the machine change
little; it is taken in pairs, one after the other, each in the other order than the pair before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import dask.array as da
from distributed.deploy.subprocess import SubprocessCluster

from dask_marsched.bench.metrics import median
from dask_marsched.client import Client
from dask_marsched.config import Settings
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin

BAR_THROUGHPUT = 0.98
_SIDE = 1000


def _loop_seconds(client: Client) -> float:
    """Return the processor seconds of the scheduler's event loop so far."""
    run: Any = client.run_on_scheduler
    found: float = run(time.thread_time)
    return found


def _seconds(client: Client, tasks: int, observed: bool) -> float:
    """Return the scheduler's processor seconds for a graph of about so many tasks."""
    settings = Settings(observer_enabled=observed, dashboard_pages=observed, api_enabled=observed)
    client.register_plugin(MarsSchedulerPlugin(settings=settings))
    try:
        # Chunks, and as many tasks again that add something to them and to each other
        x = da.ones((_SIDE, _SIDE), chunks=max(1, _SIDE // round((tasks / 2) ** 0.5)))
        before = _loop_seconds(client)
        # of other names each time
        (x + float(time.time_ns())).sum().compute(optimize_graph=False)
        return _loop_seconds(client) - before
    finally:
        client.unregister_scheduler_plugin("marsched")


def throughput(
    tasks: int, repeat: int, progress: Callable[[str], None] = lambda _: None
) -> list[tuple[float, float]]:
    """Return the scheduler's processor seconds without and with the observer, pair by pair.

    Parameters
    ----------
    tasks
        Of the graph, about.
    repeat
        How many pairs.
    progress
        Told of each pair.
    """
    pairs = []
    options: dict[str, Any] = {"n_workers": 2, "worker_kwargs": {"nthreads": 2}}
    with SubprocessCluster(**options) as cluster, Client(cluster) as client:
        client.wait_for_workers(2)
        for observed in (True, False):
            _seconds(client, tasks, observed)  # what happens once only
        for repetition in range(repeat):
            order = (False, True) if repetition % 2 else (True, False)
            taken = {observed: _seconds(client, tasks, observed) for observed in order}
            pairs.append((taken[False], taken[True]))
            progress(f"{taken[False]:.2f} s without, {taken[True]:.2f} s with the observer")
    return pairs


def cells(pairs: list[tuple[float, float]]) -> list[list[str]]:
    """Return the table of the observer's cost, its head first."""
    ratios = [without / with_it for without, with_it in pairs]
    without, with_it = (sum(column) for column in zip(*pairs, strict=True))
    return [
        ["pairs", "without, CPU s", "with, CPU s", "median x", "all x", "least", "most", "verdict"],
        [
            str(len(pairs)),
            f"{without:.2f}",
            f"{with_it:.2f}",
            f"{median(ratios):.3f}",
            f"{without / with_it:.3f}",
            f"{min(ratios):.3f}",
            f"{max(ratios):.3f}",
            "met" if min(median(ratios), without / with_it) >= BAR_THROUGHPUT else "not met",
        ],
    ]
