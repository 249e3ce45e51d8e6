import numpy as np
import xarray as xr

from dask_marsched.demo import store
from dask_marsched.demo.layout import VARIABLES, Layout

LAYOUT = Layout(resolution=45, days_per_chunk=100)


def test_holds_what_the_layout_says(tmp_path):
    path = tmp_path / "weather.zarr"
    store.write(path, LAYOUT)
    with xr.open_zarr(path, consolidated=False) as ds:
        assert set(ds.data_vars) == set(VARIABLES)
        assert sum(ds[name].nbytes for name in VARIABLES) == LAYOUT.nbytes
        assert ds.t.shape == LAYOUT.shape
        assert ds.t.chunks[0] == (2400, 2400, 2400, 1560)
        assert ds.t.attrs["units"] == "K"
        assert ds.time.to_index()[-1].isoformat() == "2001-12-31T23:00:00"
        assert ds.latitude.to_numpy().tolist() == [90, 45, 0, -45, -90]
        for name in VARIABLES:
            expected = store.Field(name, LAYOUT).chunk(2)
            np.testing.assert_array_equal(ds[name][4800:7200], expected)


def test_reading_once_reads_every_file(tmp_path):
    store.write(tmp_path / "weather.zarr", LAYOUT)
    sizes = [f.stat().st_size for f in tmp_path.rglob("*") if f.is_file()]
    assert store.read_once(tmp_path) == sum(sizes)
