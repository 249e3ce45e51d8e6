import numpy as np
import pytest

from dask_marsched.demo.layout import VARIABLES, Layout
from dask_marsched.demo.store import Field

LAYOUT = Layout(resolution=15)


@pytest.fixture(scope="module")
def temperature():
    field = Field("t", LAYOUT)
    return np.concatenate([field.chunk(index) for index in range(25)])


def test_chunks_make_up_the_whole_axis(temperature):
    assert temperature.shape == LAYOUT.shape
    assert temperature.dtype == np.float32


@pytest.mark.parametrize("variable", VARIABLES)
def test_same_values_in_any_order(variable):
    forwards, backwards = Field(variable, LAYOUT), Field(variable, LAYOUT)
    expected = [forwards.chunk(index) for index in (0, 5, 12)]
    for index, values in zip((12, 5, 0), reversed(expected), strict=True):
        np.testing.assert_array_equal(backwards.chunk(index), values)


def test_variables_differ():
    chunk = Field("u", LAYOUT).chunk(0)
    assert not np.array_equal(chunk, Field("v", LAYOUT).chunk(0))


def test_seasons(temperature):
    january, july = temperature[: 31 * 24].mean(0), temperature[181 * 24 : 212 * 24].mean(0)
    north, south = 3, -4  # 45 degrees
    assert (july - january)[north].mean() > 10
    assert (july - january)[south].mean() < -10


def test_poles_are_cold_and_days_differ(temperature):
    climate = temperature.mean((0, 2))
    assert climate[6] > climate[0] + 20
    assert temperature[:, 4, 0].std() > 3
