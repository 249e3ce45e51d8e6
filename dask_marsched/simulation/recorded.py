"""From the executions on a real cluster to what their tasks cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from distributed.comm import get_address_host

from dask_marsched.simulation.costs import Costs

Floats = np.ndarray[Any, np.dtype[np.float64]]


def costs_of(executions: Mapping[str, Sequence[Any]], cores: Mapping[str, int]) -> Costs:
    """Return the costs of recorded tasks.

    Parameters
    ----------
    executions
        Columns as in `dask_marsched.recording.TaskRecorder`.
    cores
        Cores of each host, by the host's address; a host that is missing counts as one with a
        core for every task.

    Returns
    -------
    Costs
        Of a task that ran several times, the mean duration and the last size.
    """
    hosts = [get_address_host(worker) for worker in executions["worker"]]
    starts, stops = np.array(executions["start"]), np.array(executions["stop"])
    seconds = stops - starts
    for host in set(hosts):
        if host in cores:
            own = np.array([h == host for h in hosts])
            seconds[own] = undisturbed(starts[own], stops[own], cores[host])
    by_key: dict[Any, list[float]] = {}
    for key, duration in zip(executions["key"], seconds.tolist(), strict=True):
        by_key.setdefault(key, []).append(duration)
    return Costs(
        nbytes=dict(zip(executions["key"], executions["nbytes"], strict=True)),
        seconds={key: sum(found) / len(found) for key, found in by_key.items()},
        input_nbytes=dict(zip(executions["key"], executions["input_nbytes"], strict=True)),
    )


def undisturbed(starts: Floats, stops: Floats, cores: int) -> Floats:
    """Return how long tasks would have taken on a core of their own.

    The inverse of processor sharing: while ``n`` tasks run on ``cores`` of a host, each advances
    at the rate ``min(1, cores / n)``. All advance alike, so one function of time, the progress
    made since the beginning, gives them all.

    Parameters
    ----------
    starts, stops
        When the tasks of one host began and ended, in seconds.
    cores
        Cores of the host.

    Returns
    -------
    numpy.ndarray
        Seconds, never more than ``stops - starts``.
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
