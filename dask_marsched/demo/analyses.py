"""The three analyses, as a user writes them: plain xarray, nothing that knows of the plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import xarray as xr


class Analysis(NamedTuple):
    """An analysis and its names.

    `name` is what JSON and tests use, `title` what people read; `build` maps the opened store to
    a lazy result.
    """

    name: str
    title: str
    build: Callable[[xr.Dataset], xr.Dataset]


def climatology_anomaly(ds: Any) -> Any:
    """Return the standard deviation of the temperature's anomaly from its daily climatology."""
    by_day = ds.t.groupby("time.dayofyear")
    anomaly = by_day - by_day.mean("time")
    return anomaly.std("time").to_dataset(name="anomaly_std")


def regional_heat_flux(ds: Any) -> Any:
    """Return the northward heat flux over the North Pacific's storm track, a series over time."""
    region = ds.sel(latitude=slice(60, 20), longitude=slice(140, 240))
    weights = np.cos(np.deg2rad(region.latitude))
    flux = (region.v * region.t).weighted(weights).mean(["latitude", "longitude"])
    return flux.to_dataset(name="heat_flux")


def quadratic_means(ds: Any) -> Any:
    """Return the means over time of the products of the wind's components."""
    products = xr.Dataset({"uu": ds.u * ds.u, "vv": ds.v * ds.v, "uv": ds.u * ds.v})
    return products.mean("time")


ANALYSES = (
    Analysis("climatology_anomaly", "daily climatology anomaly", climatology_anomaly),
    Analysis("regional_heat_flux", "regional mean of a flux", regional_heat_flux),
    Analysis("quadratic_means", "quadratic means of the wind", quadratic_means),
)
