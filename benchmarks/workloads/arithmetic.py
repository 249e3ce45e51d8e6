"""Arithmetic over arrays in memory, and products in which every chunk meets every other."""

from __future__ import annotations

import dask.array as da
import numpy as np

from dask_marsched.bench.workloads import Array, Kind, Parameters, random_grid, register


def _bands(parameters: Parameters) -> tuple[Array, ...]:
    """Return three bands of an image, values between 0.5 and 1.5."""
    rows = parameters.count(24)
    return tuple(random_grid(parameters, seed, rows, 1) + 0.5 for seed in (51, 52, 53))


def _vegetation(_: Parameters, red: Array, near: Array, blue: Array) -> tuple[Array, ...]:
    return ((2.5 * (near - red) / (near + 6 * red - 7.5 * blue + 10)).mean(axis=0),)


def _calibration(_: Parameters, x: Array, y: Array, z: Array) -> tuple[Array, ...]:
    return ((0.12 + x * (1.04 + x * (-0.031 + x * (0.0042 + x * 0.0007)))).std(),)


def _rosenbrock(_: Parameters, x: Array, y: Array, z: Array) -> tuple[Array, ...]:
    return (((0.5 - x) ** 2 + 0.8 * (y - x**2) ** 2).max(),)


for _name, _summary, _expression in (
    ("vegetation", "an enhanced vegetation index, its mean over one axis", _vegetation),
    ("calibration", "a polynomial of degree four, its standard deviation", _calibration),
    ("rosenbrock", "Rosenbrock's function, its maximum", _rosenbrock),
):
    register(_name, _summary, _bands, _expression, persist=True, kind=Kind.ELEMENTWISE)


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
