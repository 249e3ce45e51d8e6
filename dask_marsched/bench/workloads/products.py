"""Products of blocks, in which every block meets every other."""

from __future__ import annotations

import dask.array as da
import numpy as np

from dask_marsched.bench.workloads.arrays import Array, random_grid
from dask_marsched.bench.workloads.registry import Kind, Parameters, register


def _matrix(parameters: Parameters) -> tuple[Array]:
    n = parameters.grid(6)
    return (random_grid(parameters, 73, n, n),)


def _covariance(_: Parameters, x: Array) -> tuple[Array]:
    return (abs((da if isinstance(x, da.Array) else np).cov(x)).max(axis=0),)


def _points(parameters: Parameters) -> tuple[Array, ...]:
    """Two sets of points in eight dimensions; the distances between two chunks make a chunk."""
    shape = (parameters.grid(12) * parameters.side, 8)
    chunks = (parameters.side, 8)
    return tuple(da.random.default_rng(seed).random(shape, chunks=chunks) for seed in (71, 72))


def _distances(_: Parameters, x: Array, y: Array) -> tuple[Array]:
    squares = (x * x).sum(axis=1)[:, None] + (y * y).sum(axis=1)
    return ((squares - 2 * x @ y.T).min(axis=0),)


register(
    "covariance",
    "cov(x): every row of chunks meets every other",
    _matrix,
    _covariance,
    kind=Kind.PRODUCTS,
)
register(
    "distances",
    "from each of many points to the nearest of others",
    _points,
    _distances,
    kind=Kind.PRODUCTS,
)
