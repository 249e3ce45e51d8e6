"""What somebody at a keyboard waits for: small results of data in memory, and single calls."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da

from .arrays import Array, random_series
from .registry import Kind, Parameters, Workload, register


def _series(parameters: Parameters) -> tuple[Array]:
    return (random_series(parameters, seed=71, steps=parameters.count(48)),)


def _slice(_: Parameters, x: Array) -> tuple[Array]:
    return (x[1, :10, :10],)


def _mean(_: Parameters, x: Array) -> tuple[Array]:
    return (x.mean(axis=0),)


def _histogram(_: Parameters, x: Array) -> tuple[Array]:
    return (da.histogram(x, bins=50, range=(0, 1))[0],)


def _increment(i: int) -> int:
    return i + 1


def _calls(parameters: Parameters, *_: Array) -> tuple[Any]:
    """Submit one call after the other, each of the result of the last one."""
    from distributed import get_client  # not where there is only Dask

    client, value = get_client(), 0
    for _ in range(parameters.count(1000)):
        value = client.submit(_increment, value, pure=False).result()
    return (dask.delayed(value),)


for _name, _summary, _expression in (
    ("one-slice", "a slice of a series in memory", _slice),
    ("one-mean", "the mean over time of a series in memory", _mean),
    ("one-histogram", "a histogram of a series in memory", _histogram),
):
    register(Workload(_name, _summary, _series, _expression, persist=True, kind=Kind.INTERACTIVE))
register(
    Workload(
        "submit-loop",
        "client.submit(f).result(), 1,000 times",
        lambda _: (),
        _calls,
        persist=True,
        kind=Kind.INTERACTIVE,
        needs_cluster=True,
    )
)
