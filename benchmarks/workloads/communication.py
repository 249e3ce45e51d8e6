"""Patterns of communication, from neighbours to all-to-all; and tasks that do nothing."""

from __future__ import annotations

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


def smooth(block: Any) -> Any:
    """Return the mean of each point and its four neighbours; the rim keeps its values."""
    out = block.copy()
    out[1:-1, 1:-1] = (
        block[1:-1, 1:-1] + block[:-2, 1:-1] + block[2:, 1:-1] + block[1:-1, :-2] + block[1:-1, 2:]
    ) / 5.0
    return out


def _smooth_mean(_: Parameters, x: Array) -> tuple[Array]:
    return (da.map_overlap(smooth, x, depth=1, boundary="none", dtype=x.dtype).mean(axis=0),)


def _bands(parameters: Parameters) -> tuple[Array]:
    """Rows cut into bands; as many columns as bands, so that columns are of the same size."""
    n = parameters.count(40)
    columns = n * max(1, parameters.side // n)
    rows = max(1, parameters.elements // columns)
    generator = da.random.default_rng(41)
    return (generator.random((n * rows, columns), chunks=(rows, columns)),)


def _rechunk(method: str) -> Any:
    def expression(_: Parameters, x: Array) -> tuple[Array]:
        n = len(x.chunks[0])
        columns = x.rechunk((x.shape[0], x.shape[1] // n), method=method)
        return (da.map_blocks(np.sort, columns, axis=0, dtype=x.dtype)[::64].sum(axis=0),)

    return expression


def _months(parameters: Parameters) -> tuple[Array]:
    return (random_series(parameters, 43, parameters.count(96)),)


def _climatology(use_flox: bool) -> Any:
    def expression(_: Parameters, x: Array) -> tuple[Array, ...]:
        import pandas as pd
        import xarray as xr

        # Twelve steps a year: each month returns every twelfth chunk, as days of the year do.
        time = pd.date_range("2000-01-01", periods=x.shape[0], freq="MS")
        data = xr.DataArray(x, dims=("time", "y", "x"), coords={"time": time})
        with xr.set_options(use_flox=use_flox):  # type: ignore[no-untyped-call]  # untyped there
            by_month = data.groupby("time.month")
            climatology = by_month.mean("time")
            anomaly = by_month - climatology
        return climatology.mean("month").data, abs(anomaly).mean(("y", "x")).data

    return expression


def identity(value: int) -> int:
    """Return the argument: a task that does nothing."""
    return value


def _tiny_tasks(parameters: Parameters) -> tuple[Any, ...]:
    task = dask.delayed(identity, pure=True)
    return tuple(task(i) for i in range(parameters.count(10_000)))


register(
    "map-overlap",
    "a five-point mean by map_overlap: every chunk needs its neighbours' rim",
    lambda p: (random_grid(p, 47, p.grid(8), p.grid(8)),),
    _smooth_mean,
)
register("rechunk-tasks", "rows to columns by tasks, sorted", _bands, _rechunk("tasks"))
register(
    "rechunk-p2p",
    "rows to columns by the peer-to-peer shuffle, sorted",
    _bands,
    _rechunk("p2p"),
    requires=("distributed", "pyarrow"),
    needs_cluster=True,
)
register(
    "cumsum",
    "running sum along the chunked axis: a chain across all chunks",
    lambda p: (random_series(p, 48, p.count(80)),),
    lambda _, x: (x.cumsum(axis=0).mean(axis=(1, 2)),),
)
register(
    "climatology-flox",
    "monthly climatology and anomaly with xarray, grouped by flox",
    _months,
    _climatology(use_flox=True),
    requires=("xarray", "flox"),
)
register(
    "climatology-plain",
    "monthly climatology and anomaly with xarray, without flox",
    _months,
    _climatology(use_flox=False),
    requires=("xarray",),
)
register(
    "tiny-tasks",
    "ten thousand independent tasks that do nothing",
    lambda _: (),
    _tiny_tasks,
    kind=Kind.OVERHEAD,
)
