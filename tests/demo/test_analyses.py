import dask
import numpy as np
import pytest
import xarray as xr

from dask_marsched.demo import store
from dask_marsched.demo.analyses import ANALYSES
from dask_marsched.demo.layout import Layout

LAYOUT = Layout(years=2, resolution=15, days_per_chunk=90)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("demo") / "weather.zarr"
    store.write(path, LAYOUT)
    return path


@pytest.fixture(scope="module")
def results(path):
    with dask.config.set(scheduler="sync"), xr.open_zarr(path, consolidated=False) as ds:
        return {name: build(ds).compute() for name, _, build in ANALYSES}


@pytest.fixture(scope="module")
def values(path):
    with dask.config.set(scheduler="sync"), xr.open_zarr(path, consolidated=False) as ds:
        return ds.compute()


def test_anomaly(results, values):
    by_day = values.t.to_numpy().astype("f8").reshape(2, 365, 4, 13, 24)
    expected = (by_day - by_day.mean((0, 2), keepdims=True)).std((0, 1, 2))
    np.testing.assert_allclose(results["climatology_anomaly"].anomaly_std, expected, rtol=1e-3)


def test_anomaly_without_flox(path, results):
    build = ANALYSES[0].build
    with (
        xr.set_options(use_flox=False),
        dask.config.set(scheduler="sync"),
        xr.open_zarr(path, consolidated=False) as ds,
    ):
        result = build(ds).compute()
    xr.testing.assert_allclose(result, results["climatology_anomaly"], rtol=1e-4)


def test_regional_flux(results, values):
    # 60 to 30 degrees north, 150 to 240 degrees east on this grid
    box = (slice(None), slice(2, 5), slice(10, 17))
    flux = values.v.to_numpy()[box].astype("f8") * values.t.to_numpy()[box]
    weights = np.cos(np.deg2rad([60, 45, 30]))[:, None] * np.ones(7)
    expected = np.average(flux.reshape(len(flux), -1), axis=1, weights=weights.ravel())
    np.testing.assert_allclose(results["regional_heat_flux"].heat_flux, expected, rtol=1e-3)


def test_quadratic_means(results, values):
    u, v = values.u.to_numpy().astype("f8"), values.v.to_numpy().astype("f8")
    means = results["quadratic_means"]
    np.testing.assert_allclose(means.uu, (u * u).mean(0), rtol=1e-4)
    np.testing.assert_allclose(means.vv, (v * v).mean(0), rtol=1e-4)
    np.testing.assert_allclose(means.uv, (u * v).mean(0), rtol=1e-3, atol=1e-3)
