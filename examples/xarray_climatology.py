"""A daily climatology with xarray: the program a geoscientist has, and one line changed.

    python examples/xarray_climatology.py [STORE] [--variable t2m] [--years 3]

STORE is a Zarr store with a variable over time, latitude and longitude. Without one the program
writes a small store of made-up temperatures and uses that.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from dask_marsched import Client, MarsSchedulerPlugin


def write_temperatures(path, years):
    """Write daily temperatures of some years: a season, and weather that is mere noise."""
    time = pd.date_range("2001-01-01", periods=365 * years)
    latitude, longitude = np.linspace(90, -90, 61), np.arange(0, 360, 3.0)
    season = -15 * np.cos(2 * np.pi * time.day_of_year.to_numpy() / 365.25)
    noise = np.random.default_rng(0).normal(0, 3, (time.size, latitude.size, longitude.size))
    values = 283 + season[:, None, None] * np.sin(np.deg2rad(latitude))[:, None] + noise
    t2m = xr.DataArray(
        values.astype("float32"),
        {"time": time, "latitude": latitude, "longitude": longitude},
        ("time", "latitude", "longitude"),
    )
    t2m.to_dataset(name="t2m").chunk(time=30).to_zarr(path, consolidated=False)


def climatology(store, variable):
    """Return how far a day is from what is usual on its date, on average over all days."""
    values = xr.open_zarr(store, consolidated=False)[variable]
    by_day = values.groupby("time.dayofyear")
    anomaly = by_day - by_day.mean("time")
    return anomaly.std("time").compute()


def main():
    """Read the arguments and print the outcome."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", nargs="?", help="a Zarr store (default: one made for this run)")
    parser.add_argument("--variable", default="t2m", help="name of the variable in the store")
    parser.add_argument("--years", type=int, default=3, help="length of the store made")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as scratch:
        store = arguments.store
        if store is None:
            store = Path(scratch) / "t2m.zarr"
            write_temperatures(store, arguments.years)

        # The line that changed: it was  client = Client(n_workers=4, threads_per_worker=1)
        client = Client(n_workers=4, threads_per_worker=1, scheduler_plugin=MarsSchedulerPlugin())
        with client:
            spread = climatology(store, arguments.variable)
    print(f"Standard deviation of the anomaly: {float(spread.mean()):.2f}, by latitude:")
    for latitude in spread.latitude[::12]:
        print(f"  {float(latitude):6.1f}  {float(spread.sel(latitude=latitude).mean()):.2f}")


if __name__ == "__main__":
    main()
