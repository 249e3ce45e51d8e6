"""Computes the three analyses in plain xarray, as users write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

RATED, GAS_CONSTANT, PRESSURE = 12_000.0, 287.05, 85_000.0


class Analysis(NamedTuple):
    """A name for people, and the function that maps the opened store to a lazy result."""

    title: str
    build: Callable[[Any], Any]


def eddy_fluxes(ds: Any) -> Any:
    """Return the fluxes of heat and momentum by deviations from the mean, and their energy."""
    t, u, v = (ds[name] - ds[name].mean("time") for name in "tuv")
    fluxes = {"heat": v * t, "momentum": u * v, "energy": 0.5 * (u * u + v * v)}
    return xr.Dataset(fluxes).mean("time")


def wind_power(ds: Any) -> Any:
    """Return mean and variability of the wind's speed, and of the power that it carries."""
    speed = np.sqrt(ds.u**2 + ds.v**2)
    density = PRESSURE / (GAS_CONSTANT * ds.t)
    power = (0.5 * density * speed**3).clip(max=RATED)
    return xr.Dataset(
        {
            "speed": speed.mean("time"),
            "speed_std": speed.std("time"),
            "power": power.mean("time"),
            "power_std": power.std("time"),
        }
    )


def hot_days(ds: Any) -> Any:
    """Return the 95th percentile of the daily maxima, and the number of days above it."""
    daily = ds.t.coarsen(time=24).max()
    daily = daily.chunk(time=-1, latitude=12, longitude=60)  # whole series for the percentile
    threshold = daily.quantile(0.95, "time")
    return xr.Dataset({"threshold": threshold, "days": (daily > threshold).sum("time")})


ANALYSES = (
    Analysis("eddy fluxes", eddy_fluxes),
    Analysis("wind power", wind_power),
    Analysis("hot days", hot_days),
)
KILLED = Analysis("eddy fluxes, a worker killed", eddy_fluxes)
