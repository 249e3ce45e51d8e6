import json
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from dask_marsched.demo.comparison import known_quantities, same_values


def result(values, name="x", unit="D"):
    time = np.array(["2001-01-01", "NaT"], dtype=f"datetime64[{unit}]").astype("datetime64[ns]")
    return xr.Dataset({name: ("time", values)}, {"time": time})


VALUES = np.array([1.5, np.nan], dtype="f4")


def test_nan_and_missing_times_equal_themselves():
    assert same_values(result(VALUES), result(VALUES.copy()))


@pytest.mark.parametrize(
    "other",
    [
        result(np.nextafter(VALUES, np.float32(2))),
        result(VALUES.astype("f8")),
        result(np.array([1.5, 0], dtype="f4")),
        result(VALUES, name="y"),
        result(VALUES).rename(time="day"),
        result(VALUES).isel(time=[0]),
        result(VALUES).isel(time=[0, 0]),
    ],
    ids=["last bit", "type", "no nan", "name", "axis", "length", "coordinate"],
)
def test_any_difference_counts(other):
    assert not same_values(result(VALUES), other)


def test_ratios(comparisons):
    much, nothing = comparisons
    assert much.ratio("moved") == 0.05
    assert nothing.ratio("moved") is None
    assert nothing.ratio("seconds") == 1.5


def test_json(comparisons):
    entry = json.loads(json.dumps(comparisons[0].to_json()))
    assert entry["stock"]["moved"] == 1200 * 2**20
    assert entry["marsched"]["seconds"] == 10.0
    assert entry["ratios"]["managed"] == 0.5
    assert entry["equal"] is True


def test_what_was_not_measured_is_left_out(comparisons):
    assert [q.name for q in known_quantities(comparisons)] == ["moved", "managed", "pss", "seconds"]
    no_pss = replace(comparisons[1], stock=replace(comparisons[1].stock, pss=None))
    found = known_quantities([comparisons[0], no_pss])
    assert [q.name for q in found] == ["moved", "managed", "seconds"]
