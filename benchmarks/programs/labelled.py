"""Programs of labelled arrays: xarray."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client


def anomaly(_: Client) -> Any:
    """Subtract the mean of each month."""
    months = _labelled((2000, 180, 360), (100, 180, 360), "1D").groupby("time.month")
    return float((months - months.mean()).std().compute())


def resample(_: Client) -> Any:
    """Average by month, then over three months."""
    values = _labelled((4000, 90, 180), (100, 90, 180), "6h")
    return float(values.resample(time="1ME").mean().rolling(time=3).mean().max().compute())


def quantile(_: Client) -> Any:
    """Find quantiles along a dimension that is in many chunks."""
    values = _labelled((1000, 180, 360), (100, 90, 90), "1D").chunk(time=-1)
    return float(values.quantile([0.1, 0.9], dim="time").sum().compute())


def trend(_: Client) -> Any:
    """Fit a line to each point's series, by a loop in Python."""
    values = _labelled((600, 90, 180), (600, 45, 90), "1D")
    return float(values.polyfit("time", 1).polyfit_coefficients.sum().compute())


def correlation(_: Client) -> Any:
    """Correlate with the series of the day before."""
    import xarray as xr

    values = _labelled((1000, 180, 360), (100, 180, 360), "1D")
    return float(xr.corr(values, values.shift(time=1), dim="time").mean().compute())


def spread(_: Client) -> Any:
    """Mean and standard deviation of each point's series, without NaN."""
    values = _sea()
    mean, deviation = dask.compute(values.mean("time"), values.std("time"))
    return float(mean.sum()), float(deviation.sum())


def weighted(_: Client) -> Any:
    """Average over the area by its size."""
    import xarray as xr

    values = _sea()
    weights = xr.DataArray(np.cos(np.linspace(-1.5, 1.5, values.sizes["y"])), dims="y")
    return float(values.weighted(weights).mean(("y", "x")).std().compute())


def rolling(_: Client) -> Any:
    """Average over a running window."""
    return float(_sea().rolling(time=3).mean().max("time").sum().compute())


def coarsen(_: Client) -> Any:
    """Average blocks of points, and find their spread over time."""
    return float(_sea().coarsen(y=4, x=4).mean().std("time").sum().compute())


def composite(_: Client) -> Any:
    """Average the values above a threshold, of each point."""
    values = _sea()
    return float(values.where(values > 0.5).mean("time").sum().compute())


def _sea() -> Any:
    """Return values of single precision with NaN on land, and in gaps."""
    values = _labelled((120, 512, 1024), (4, 512, 1024), "1D").astype("f4")
    values = values.where(values > 0.02)
    return values.where(values.x > 200)


def _labelled(shape: tuple[int, ...], chunks: tuple[int, ...], freq: str) -> Any:
    import pandas as pd
    import xarray as xr

    values = da.random.default_rng(1).random(shape, chunks=chunks)
    coordinates = {
        "time": pd.date_range("2000", periods=shape[0], freq=freq),
        "y": np.arange(shape[1]),
        "x": np.arange(shape[2]),
    }
    return xr.DataArray(values, dims=("time", "y", "x"), coords=coordinates)
