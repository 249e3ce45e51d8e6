import shutil
import sys
from types import SimpleNamespace

import psutil
import pytest
from click import ClickException

from dask_marsched.demo.command import check_modules
from dask_marsched.demo.layout import layout_for

GIB = 2**30


def has(monkeypatch, memory, disk):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=memory))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=disk))


def test_missing_package_is_named(monkeypatch):
    check_modules()
    monkeypatch.setitem(sys.modules, "zarr", None)  # as Python does for what cannot be imported
    with pytest.raises(ClickException, match=r"needs zarr: .* '\.\[demo\]'"):
        check_modules()


@pytest.mark.parametrize(
    ("memory", "disk", "chosen"), [(20, 20, 2.0), (3, 20, 3.0), (20, 1, 3.0), (5, 2, 2.0)]
)
def test_the_finest_that_fits_is_chosen(monkeypatch, tmp_path, memory, disk, chosen):
    has(monkeypatch, memory * GIB, disk * GIB)
    assert layout_for(None, tmp_path).resolution == chosen
    assert layout_for(15, tmp_path).resolution == 15


def test_too_little_memory(monkeypatch, tmp_path):
    has(monkeypatch, 2 * GIB, 20 * GIB)
    with pytest.raises(ClickException, match=r"need 2.* and 2.00 GiB are available: close other"):
        layout_for(None, tmp_path)


def test_full_disk(monkeypatch, tmp_path):
    has(monkeypatch, 20 * GIB, GIB // 4)
    with pytest.raises(ClickException, match=r"up to .* on the disk of .* 256.00 MiB are free"):
        layout_for(None, tmp_path)
