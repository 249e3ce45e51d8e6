"""Computes costs of tasks and of event loops from what ran on a real cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from distributed.comm import get_address_host

from dask_marsched.simulation.cluster.spec import cluster_spec
from dask_marsched.simulation.costs.costs import Costs

Floats = np.ndarray[Any, np.dtype[np.float64]]
#: Seconds of processor time below which a recording is too short.
_LEAST_SECONDS = 0.05


def costs_of(
    executions: Mapping[str, Sequence[Any]],
    cores: Mapping[str, int],
    processor: Mapping[str, Mapping[int, tuple[float, float]]] | None = None,
) -> Costs:
    """Return the mean duration on a core of its own, and the last size, of each recorded task.

    Tasks of a host with fewer ``cores`` (by address) than running tasks are taken to have shared
    them equally. That still includes waits for event loops and other programs. So if ``processor``
    tells the seconds that each thread ran and waited for a core, its tasks are scaled to the time
    that it ran, slept, or waited for disk and network. ``executions`` has the columns of
    `Recording`.
    """
    hosts = [get_address_host(worker) for worker in executions["worker"]]
    starts, stops = np.array(executions["start"]), np.array(executions["stop"])
    seconds = stops - starts
    for host in set(hosts):
        if host in cores:
            own = np.array([h == host for h in hosts])
            seconds[own] = seconds_on_own_core(starts[own], stops[own], cores[host])
    if processor:
        seconds = _as_measured(executions, stops - starts, seconds, processor)
    by_key: dict[Any, list[float]] = {}
    for key, duration in zip(executions["key"], seconds.tolist(), strict=True):
        by_key.setdefault(key, []).append(duration)
    return Costs(
        nbytes=dict(zip(executions["key"], executions["nbytes"], strict=True)),
        seconds={key: sum(found) / len(found) for key, found in by_key.items()},
        input_nbytes=dict(zip(executions["key"], executions["input_nbytes"], strict=True)),
        joined={
            key: tuple(members)
            for key, members in zip(executions["key"], executions["joined"], strict=True)
            if members
        },
    )


def _as_measured(
    executions: Mapping[str, Sequence[Any]],
    elapsed: Floats,
    seconds: Floats,
    processor: Mapping[str, Mapping[int, tuple[float, float]]],
) -> Floats:
    """Return ``seconds`` scaled so that those of each thread sum up to what it needed."""
    rows: dict[tuple[str, int], list[int]] = {}
    for row, place in enumerate(zip(executions["worker"], executions["thread"], strict=True)):
        rows.setdefault(place, []).append(row)
    scaled = seconds.copy()
    for (worker, thread), own in rows.items():
        measured, total = processor.get(worker, {}).get(thread), seconds[own].sum()
        if measured is None or not total:
            continue
        ran, waited = measured
        needed = ran + max(0.0, elapsed[own].sum() - ran - waited)
        scaled[own] = np.minimum(seconds[own] * (needed / total), elapsed[own])
    return scaled


def seconds_on_own_core(starts: Floats, stops: Floats, cores: int) -> Floats:
    """Return how long the tasks of one host would have taken on a core of their own, in seconds.

    This inverts processor sharing: while ``n`` tasks run on ``cores``, each advances at the rate
    ``min(1, cores / n)``. So durations are differences of the progress since the beginning.
    """
    if not len(starts):
        return stops - starts
    times = np.concatenate([starts, stops])
    changes = np.concatenate([np.ones(len(starts)), -np.ones(len(stops))])
    order = np.argsort(times, kind="stable")
    times, running = times[order], np.cumsum(changes[order])
    rates = np.minimum(1.0, cores / np.maximum(running, 1.0))
    progress = np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(times))])
    taken: Floats = np.interp(stops, times, progress) - np.interp(starts, times, progress)
    return taken


class LoopLoad(NamedTuple):
    """Processor time of a worker's event loop, and the transfers that it sent, with their bytes."""

    seconds: float
    sent: int
    nbytes: int


def overhead_of(loops: Iterable[LoopLoad], tasks: int, elapsed: float) -> float:
    """Return the ratio of the processor time of event loops to that of the simulation's defaults.

    It is ``overhead`` of `ClusterSpec`, which depends on the machine and on how many processes
    share its cores; 1 if the recording, of ``tasks`` in ``elapsed`` seconds, is too short.
    """
    loops = list(loops)
    usual = cluster_spec(
        None, workers=1, threads=1, memory_limit=1, bandwidth=1, latency=0, cores=None, seed=0
    )
    # A worker receives each task and reports its end; each transfer has two ends.
    expected = tasks * (usual.task_overhead + 2 * usual.batch_cost)
    expected += 2 * usual.transfer_cost * sum(loop.sent for loop in loops)
    expected += 2 / usual.copy_bandwidth * sum(loop.nbytes for loop in loops)
    expected += usual.idle_load * elapsed * len(loops)
    measured = sum(loop.seconds for loop in loops)
    return measured / expected if min(measured, expected) > _LEAST_SECONDS else 1.0
