"""Arithmetic and reductions over arrays, for which stock Dask moves many bytes."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np

from dask_marsched.bench.workloads.registry import Parameters, register

Array = Any  # dask.array.Array, or numpy.ndarray where a test computes the reference


def random_grid(parameters: Parameters, seed: int, rows: int, columns: int) -> Array:
    """Return a seeded array of ``rows`` x ``columns`` square chunks."""
    side = parameters.side
    generator = da.random.default_rng(seed)
    return generator.random((rows * side, columns * side), chunks=(side, side))


def random_series(parameters: Parameters, seed: int, steps: int, pieces: int = 1) -> Array:
    """Return a seeded array (time, y, x), one chunk a time step, or ``pieces`` of them along y."""
    side = parameters.side
    generator = da.random.default_rng(seed)
    return generator.random((steps, pieces * side, side), chunks=(1, side, side))


def _square(seeds: tuple[int, ...], base: int) -> Any:
    def inputs(parameters: Parameters) -> tuple[Array, ...]:
        n = parameters.grid(base)
        return tuple(random_grid(parameters, seed, n, n) for seed in seeds)

    return inputs


def _series(seeds: tuple[int, ...], base: int, pieces: int = 1) -> Any:
    def inputs(parameters: Parameters) -> tuple[Array, ...]:
        steps = parameters.count(base)
        return tuple(random_series(parameters, seed, steps, pieces) for seed in seeds)

    return inputs


def thin_columns(parameters: Parameters) -> tuple[Array]:
    """Return columns one element thick, each a chunk of half the usual size."""
    rows = parameters.elements // 2
    ones = da.ones((rows, parameters.count(256)), chunks=(rows, 1))
    return (ones.map_blocks(np.copy),)


def concatenate(parts: list[Array], axis: int) -> Array:
    """Concatenate dask arrays, or numpy arrays in a reference."""
    lazy = any(isinstance(part, da.Array) for part in parts)
    return (da if lazy else np).concatenate(parts, axis=axis)


def forward_difference(field: Array, axis: int) -> Array:
    """Return the difference to the next point along a periodic axis, in the field's chunks.

    The wrapped element is appended and merged into the last chunk, as grid libraries do at a
    boundary. Nearly nothing is rechunked, but the graph is no longer blockwise.
    """
    first = field[tuple(slice(0, 1) if i == axis else slice(None) for i in range(field.ndim))]
    padded = concatenate([field, first], axis=axis)
    if isinstance(padded, da.Array):
        chunks = list(field.chunks)
        chunks[axis] = (*chunks[axis][:-1], chunks[axis][-1] + 1)
        padded = padded.rechunk(tuple(chunks))
    later = padded[tuple(slice(1, None) if i == axis else slice(None) for i in range(field.ndim))]
    return later - field


def _vorticity(_: Parameters, u: Array, v: Array, dx: Array, dy: Array) -> tuple[Array]:
    curl = forward_difference(v, 2) / dy - forward_difference(u, 1) / dx
    return (curl.mean(axis=(1, 2)),)


def _vorticity_inputs(parameters: Parameters) -> tuple[Array, ...]:
    steps = parameters.count(24)
    u, v = (random_series(parameters, seed, steps, pieces=2) for seed in (31, 32))
    dx, dy = (random_grid(parameters, seed, 2, 1) + 1.0 for seed in (33, 34))
    return u, v, dx, dy


def _quadratic(_: Parameters, u: Array, v: Array) -> tuple[Array, ...]:
    return (u * u).mean(axis=0), (v * v).mean(axis=0), (u * v).mean(axis=0)


def _standardise(_: Parameters, x: Array) -> tuple[Array]:
    return (abs((x - x.mean(axis=0)) / x.std(axis=0)).mean(axis=(1, 2)),)


register(
    "thin-column-sum",
    "sum over columns one element thick: every partial result is as large as a chunk",
    thin_columns,
    lambda _, x: (x.sum(axis=1),),
)
register(
    "binary-mean",
    "(a + b).mean(): two sources that meet chunk by chunk (dask/distributed 6597)",
    _square((11, 12), 8),
    lambda _, a, b: ((a + b).mean(),),
)
register(
    "shifted-difference",
    "a[1:, 1:] - b[:-1, :-1]: sources that meet in pieces of neighbouring chunks",
    _square((13, 14), 8),
    lambda _, a, b: ((a[1:, 1:] - b[:-1, :-1]).mean(),),
)
register(
    "vorticity",
    "curl of a flow with padded boundaries and shared grid metrics (dask/distributed 6571)",
    _vorticity_inputs,
    _vorticity,
)
register(
    "gram-matrix",
    "(a @ a.T).sum(): every row of chunks meets every other",
    _square((15,), 5),
    lambda _, a: ((a @ a.T).sum(),),
)
register(
    "add-transpose",
    "(x + x.T).mean(): chunks mirrored at the diagonal meet",
    _square((16,), 10),
    lambda _, x: ((x + x.T).mean(),),
)
register(
    "quadratic-means",
    "means over time of u*u, v*v and u*v at once",
    _series((17, 18), 64),
    _quadratic,
)
register(
    "anomaly",
    "((x - x.mean(0))**2).mean(0): the source is needed again once its mean is known",
    _series((19,), 80),
    lambda _, x: (((x - x.mean(axis=0)) ** 2).mean(axis=0),),
)
register(
    "standardise",
    "(x - mean) / std over time, in several pieces of space",
    _series((20,), 10, pieces=4),
    _standardise,
)
