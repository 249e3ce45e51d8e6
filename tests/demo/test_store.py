import numpy as np
import pytest
import xarray as xr
import zarr

from dask_marsched.demo import store
from dask_marsched.demo.layout import VARIABLES, Field, Layout

LAYOUT = Layout(resolution=45, days_per_chunk=100)


class Stop(Exception):
    pass


def stop(nbytes):
    raise Stop


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "weather.zarr"


def test_holds_what_the_layout_says(path):
    told = []
    store.write(path, LAYOUT, told.append)
    assert sum(told) == LAYOUT.nbytes
    assert store.is_complete(path, LAYOUT)
    assert not store.is_complete(path, Layout(resolution=45, days=730, days_per_chunk=100))
    with xr.open_zarr(path, consolidated=False) as ds:
        assert set(ds.data_vars) == set(VARIABLES)
        assert ds.t.shape == LAYOUT.shape
        assert ds.t.chunks[0] == (2400, 2400, 2400, 1560)
        assert ds.t.attrs["units"] == "K"
        assert ds.time.to_index()[-1].isoformat() == "2001-12-31T23:00:00"
        assert ds.latitude.to_numpy().tolist() == [90, 45, 0, -45, -90]
        for name in VARIABLES:
            np.testing.assert_array_equal(ds[name][4800:7200], Field(name, LAYOUT).chunk(2))


def test_unfinished_store_is_written_anew(path):
    with pytest.raises(Stop):
        store.write(path, LAYOUT, stop)
    assert store.is_ours(path)
    assert not store.is_complete(path, LAYOUT)
    store.write(path, LAYOUT)
    assert store.is_complete(path, LAYOUT)


def test_store_of_another_layout_is_replaced(path):
    store.write(path, Layout(resolution=45, days=730, days_per_chunk=100))
    store.write(path, LAYOUT)
    assert zarr.open_array(store=path, path="t", mode="r").shape == LAYOUT.shape


@pytest.mark.parametrize("kind", ["file", "directory", "zarr", "damaged"])
def test_what_others_wrote_is_left_alone(tmp_path, kind):
    path = tmp_path / "theirs"
    if kind == "file":
        path.write_text("precious")
    elif kind == "directory":
        path.mkdir()
        (path / "thesis.txt").write_text("precious")
    elif kind == "zarr":
        zarr.create_group(store=path, attributes={"title": "precious"})
    else:
        path.mkdir()
        (path / "zarr.json").write_text("{")
    before = sorted(tmp_path.rglob("*"))
    assert not store.is_complete(path, LAYOUT)
    with pytest.raises(FileExistsError, match="is no store of this demo: name another path"):
        store.write(path, LAYOUT)
    assert sorted(tmp_path.rglob("*")) == before


def test_empty_directory_is_used(tmp_path):
    store.write(tmp_path, LAYOUT)
    assert store.is_complete(tmp_path, LAYOUT)


def test_reading_once_reads_every_file(path):
    store.write(path, LAYOUT)
    assert store.read_once(path) == sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
