import dask
import numpy as np
import pytest
import xarray as xr

from dask_marsched.demo import store
from dask_marsched.demo.analyses import (
    GAS_CONSTANT,
    PRESSURE,
    RATED,
    eddy_fluxes,
    hot_days,
    wind_power,
)
from dask_marsched.demo.layout import Layout

LAYOUT = Layout(resolution=15, days=60, days_per_chunk=20)


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    path = tmp_path_factory.mktemp("demo") / "weather.zarr"
    store.write(path, LAYOUT)
    with dask.config.set(scheduler="sync"), xr.open_zarr(path, consolidated=False) as ds:
        yield ds


@pytest.fixture(scope="module")
def values(ds):
    return {name: ds[name].to_numpy().astype("f8") for name in "tuv"}


def test_eddy_fluxes(ds, values):
    found = eddy_fluxes(ds).compute()
    t, u, v = (values[name] - values[name].mean(0) for name in "tuv")
    np.testing.assert_allclose(found.heat, (v * t).mean(0), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found.momentum, (u * v).mean(0), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found.energy, (u * u + v * v).mean(0) / 2, rtol=1e-3)


def test_wind_power(ds, values):
    found = wind_power(ds).compute()
    speed = np.hypot(values["u"], values["v"])
    power = np.minimum(0.5 * PRESSURE / (GAS_CONSTANT * values["t"]) * speed**3, RATED)
    np.testing.assert_allclose(found.speed, speed.mean(0), rtol=1e-4)
    np.testing.assert_allclose(found.speed_std, speed.std(0), rtol=1e-3)
    np.testing.assert_allclose(found.power, power.mean(0), rtol=1e-4)
    np.testing.assert_allclose(found.power_std, power.std(0), rtol=1e-3)


def test_hot_days(ds, values):
    found = hot_days(ds).compute()
    daily = values["t"].reshape(60, 24, 13, 24).max(1)
    threshold = np.quantile(daily, 0.95, axis=0)
    np.testing.assert_allclose(found.threshold, threshold, rtol=1e-6)
    np.testing.assert_array_equal(found.days, (daily > threshold).sum(0))
