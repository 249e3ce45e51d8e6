"""Programs of labelled arrays: xarray."""

from __future__ import annotations

from typing import Any

import dask.array as da
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


def _labelled(shape: tuple[int, ...], chunks: tuple[int, ...], freq: str) -> Any:
    import pandas as pd
    import xarray as xr

    values = da.random.default_rng(1).random(shape, chunks=chunks)
    times = pd.date_range("2000", periods=shape[0], freq=freq)
    return xr.DataArray(values, dims=("time", "y", "x"), coords={"time": times})
