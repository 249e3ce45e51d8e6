"""Interactive workloads: small results of data in memory."""

from __future__ import annotations

import dask.array as da

from dask_marsched.bench.workloads import Array, Kind, Parameters, random_series, register


def _series(parameters: Parameters) -> tuple[Array]:
    return (random_series(parameters, seed=71, steps=parameters.count(48)),)


def _slice(_: Parameters, x: Array) -> tuple[Array]:
    return (x[1, :10, :10],)


def _mean(_: Parameters, x: Array) -> tuple[Array]:
    return (x.mean(axis=0),)


def _histogram(_: Parameters, x: Array) -> tuple[Array]:
    return (da.histogram(x, bins=50, range=(0, 1))[0],)


for _name, _summary, _expression in (
    ("one-slice", "a slice of a series in memory", _slice),
    ("one-mean", "the mean over time of a series in memory", _mean),
    ("one-histogram", "a histogram of a series in memory", _histogram),
):
    register(_name, _summary, _series, _expression, persist=True, kind=Kind.INTERACTIVE)
