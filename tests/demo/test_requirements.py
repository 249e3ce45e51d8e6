import sys

import pytest

from dask_marsched.demo import requirements
from dask_marsched.demo.layout import Layout
from dask_marsched.demo.requirements import RequirementError

SMALL = Layout(years=1, resolution=45)
HUGE = Layout(years=100, resolution=0.25)


def test_all_is_there(tmp_path):
    requirements.check_modules()
    requirements.check_disk(tmp_path / "not" / "yet", SMALL)
    requirements.check_memory(SMALL, 1, 2**30)


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "zarr", None)  # as Python does for what cannot be imported
    with pytest.raises(RequirementError, match=r"needs zarr: .* 'dask-marsched\[demo\]'"):
        requirements.check_modules()


def test_full_disk(tmp_path):
    with pytest.raises(RequirementError, match=r"up to 1\.\d+ TiB on the disk of .*: use --store"):
        requirements.check_disk(tmp_path / "store", HUGE)


def test_too_little_memory():
    with pytest.raises(RequirementError, match="are available: use fewer --years"):
        requirements.check_memory(HUGE, 1, 2**50)


def test_limit_too_small():
    with pytest.raises(RequirementError, match="use a larger --memory-limit"):
        requirements.check_memory(SMALL, 2, 100 * 2**20)
