"""Workloads that never serve to tune a constant, to show whether the others were overfitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np

from dask_marsched.bench.workloads import (
    Array,
    Kind,
    Parameters,
    random_grid,
    random_series,
    register,
)


def _grids(seeds: tuple[int, ...], base: int) -> Any:
    def inputs(parameters: Parameters) -> tuple[Array, ...]:
        n = parameters.grid(base)
        return tuple(random_grid(parameters, seed, n, n) for seed in seeds)

    return inputs


def _masked(_: Parameters, x: Array, mask: Array) -> tuple[Array]:
    where = da.where if isinstance(x, da.Array) else np.where
    return (where(mask > 0.5, x, -x).sum(axis=0),)


def _transposed(_: Parameters, x: Array) -> tuple[Array]:
    turned = x.T.rechunk((x.chunks[1][0] // 2, x.shape[0]))
    return (da.map_blocks(np.cumsum, turned, axis=1, dtype=x.dtype)[:, ::64].sum(axis=0),)


def _frames(parameters: Parameters) -> tuple[Any, Any]:
    """Two frames with keys and whole numbers: sums of whole numbers do not depend on order."""
    import dask.dataframe as dd

    parts = parameters.count(48)
    rows = max(16, parameters.elements // 8)
    left = dd.from_map(make_frame, range(parts), rows=rows, keys=rows, meta=make_frame(0, 4, 4))
    right = dd.from_map(
        make_frame, range(1000, 1000 + parts), rows=rows // 4, keys=rows, meta=make_frame(0, 4, 4)
    )
    return left, right


def make_frame(seed: int, rows: int, keys: int) -> Any:
    """Return one partition: ``rows`` rows over ``keys`` distinct keys."""
    import pandas as pd

    generator = np.random.default_rng(seed)
    return pd.DataFrame(
        {"key": generator.integers(0, keys, rows), "value": generator.integers(0, 100, rows)}
    )


def _groupby(_: Parameters, left: Any, __: Any) -> tuple[Any]:
    return (left.groupby("key").value.sum(split_out=4).sum(),)


def _merge(_: Parameters, left: Any, right: Any) -> tuple[Any]:
    joined = left.merge(right, on="key", suffixes=("_left", "_right"))
    return ((joined.value_left * joined.value_right).sum(),)


def make_part(elements: int, index: int) -> Any:
    """Return a part of a map-reduce: parts differ eightfold in size."""
    return np.arange(elements * (1 + index * 7 % 8) // 4, dtype="f8") + index


def summarise(part: Any) -> Any:
    """Return a histogram of a part."""
    return np.histogram(part, bins=4096)[0]


def _map_reduce(parameters: Parameters) -> tuple[Any]:
    make, count = dask.delayed(make_part, pure=True), dask.delayed(summarise, pure=True)
    parts = [make(parameters.elements, i) for i in range(parameters.count(64))]
    neighbours = zip(parts, parts[1:] + parts[:1], strict=True)
    joined = [dask.delayed(np.append, pure=True)(a, b) for a, b in neighbours]
    return (dask.delayed(sum, pure=True)([count(part) for part in joined]),)


def _histogram(_: Parameters, x: Array) -> tuple[Array]:
    module = da if isinstance(x, da.Array) else np
    centred = x - x.mean(axis=0)
    return (module.histogram(centred, bins=256, range=(-1.0, 1.0))[0],)


def _features(parameters: Parameters) -> tuple[Array]:
    """Observations in columns, so that the matrix of correlations stays small."""
    columns = 32
    rows = parameters.elements // columns
    generator = da.random.default_rng(61)
    shape = (columns, parameters.count(96) * rows)
    return (generator.random(shape, chunks=(columns, rows)),)


def _correlation(_: Parameters, x: Array) -> tuple[Array]:
    return ((da if isinstance(x, da.Array) else np).corrcoef(x),)


def _spectrum(_: Parameters, x: Array) -> tuple[Array]:
    rows = x.rechunk((max(1, x.chunks[0][0] // len(x.chunks[1])), x.shape[1]))
    return (abs(da.fft.rfft(rows, axis=1)).mean(axis=0),)


def _cholesky(_: Parameters, x: Array) -> tuple[Array]:
    n = x.shape[0]
    matrix = x @ x.T + n * da.eye(n, chunks=x.chunks[0][0])
    lower = da.linalg.cholesky(matrix, lower=True)
    return (abs(lower).sum(axis=0),)


def _broadcast_inputs(parameters: Parameters) -> tuple[Array, ...]:
    x = random_grid(parameters, 65, parameters.grid(10), parameters.grid(10))
    generator = da.random.default_rng(66)
    return x, generator.random((x.shape[1],), chunks=x.chunks[1])


def _stored_inputs(parameters: Parameters) -> tuple[Array]:
    """Return a float32 field in a Zarr store on disk, written once for each size.

    Raises
    ------
    ValueError
        If the parameters name no scratch directory.
    """
    import zarr

    if parameters.scratch is None:
        raise ValueError("this workload needs a scratch directory to write its store in")
    steps, side = parameters.count(48), parameters.side
    shape = (steps, side, 2 * side)  # float32: twice the elements for the same bytes
    path = Path(parameters.scratch) / f"field-{steps}-{side}.zarr"
    if not path.exists():
        store = zarr.create_array(
            store=str(path), shape=shape, chunks=(1, *shape[1:]), dtype="f4", compressors=None
        )
        generator = np.random.default_rng(67)
        for step in range(steps):
            store[step] = generator.random(shape[1:], dtype="f4")
    return (da.from_zarr(str(path)),)


def _zonal(_: Parameters, x: Array) -> tuple[Array, Array]:
    zonal = x.mean(axis=2)
    return zonal, (x - x.mean(axis=0)).std(axis=0).mean(axis=1)


def spread(index: int) -> list[int]:
    """Return a thousand whole numbers that depend on the index."""
    return [(index * 7919 + i * 104729) % 1009 for i in range(1000)]


def is_odd(value: int) -> bool:
    """Tell whether a number is odd."""
    return value % 2 == 1


def _bag(parameters: Parameters) -> tuple[Any]:
    import dask.bag as db

    n = parameters.count(200)
    numbers = db.from_sequence(range(n), npartitions=n).map(spread).flatten()
    return (numbers.filter(is_odd).sum(),)


def _hold(name: str, summary: str, inputs: Any, expression: Any, **more: Any) -> None:
    register(name, summary, inputs, expression, kind=Kind.HELD_OUT, **more)


_hold(
    "persisted-arithmetic",
    "two arrays persisted first, then (a - b).std(axis=0) on them",
    _grids((51, 52), 6),
    lambda _, a, b: ((a - b).std(axis=0),),
    persist=True,
)
_hold("masked-selection", "where(mask > 0.5, x, -x).sum(axis=0)", _grids((53, 54), 7), _masked)
_hold("transpose-rechunk", "x.T, rechunked to whole rows", _grids((55,), 8), _transposed)
_hold(
    "frame-groupby",
    "sums of groups of a dataframe, shuffled to four outputs",
    _frames,
    _groupby,
    requires=("pandas", "pyarrow"),
)
_hold(
    "frame-merge",
    "two dataframes merged on a key",
    _frames,
    _merge,
    requires=("pandas", "pyarrow"),
)
_hold(
    "uneven-map-reduce",
    "histograms of neighbouring parts that differ in size",
    lambda _: (),
    _map_reduce,
)
_hold("histogram", "histogram of (x - x.mean(0))", _grids((58,), 8), _histogram)
_hold("correlation", "corrcoef of 32 variables", _features, _correlation)
_hold(
    "spectrum", "Fourier transform along rows that are gathered first", _grids((62,), 8), _spectrum
)
_hold(
    "multi-axis",
    "maximum, minimum and mean over pairs of three axes",
    lambda p: (random_series(p, 63, p.count(24), pieces=4),),
    lambda _, x: (x.max(axis=(0, 2)), x.min(axis=(1, 2)), x.mean(axis=(0, 1))),
)
_hold(
    "broadcast-vector",
    "(x * v - v).sum(axis=1) with a vector that every row of chunks shares",
    _broadcast_inputs,
    lambda _, x, v: ((x * v - v).sum(axis=1),),
)
_hold(
    "cholesky", "Cholesky factor of x @ x.T + n I", _grids((64,), 4), _cholesky, requires=("scipy",)
)
_hold(
    "zarr-zonal",
    "zonal mean and deviation of a field stored on disk",
    _stored_inputs,
    _zonal,
    requires=("zarr",),
)
_hold(
    "bag-filter", "two hundred partitions of a bag, flattened, filtered, summed", lambda _: (), _bag
)
