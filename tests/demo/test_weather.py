import numpy as np
import pytest

from dask_marsched.demo.layout import VARIABLES, Layout
from dask_marsched.demo.weather import Field

LAYOUT = Layout(years=1, resolution=15)


@pytest.fixture(scope="module")
def temperature():
    field = Field("t", LAYOUT)
    return np.concatenate([field.chunk(index) for index in range(13)])


def test_chunks_make_up_the_whole_axis(temperature):
    assert temperature.shape == LAYOUT.shape
    assert temperature.dtype == np.float32


@pytest.mark.parametrize("variable", VARIABLES)
def test_same_values_in_any_order(variable):
    forwards, backwards = Field(variable, LAYOUT), Field(variable, LAYOUT)
    expected = [forwards.chunk(index) for index in (0, 5, 12)]
    for index, values in zip((12, 5, 0), reversed(expected), strict=True):
        np.testing.assert_array_equal(backwards.chunk(index), values)


def test_seed_and_variable_make_a_difference():
    chunk = Field("u", LAYOUT).chunk(0)
    assert not np.array_equal(chunk, Field("v", LAYOUT).chunk(0))
    other = Layout(years=1, resolution=15, seed=1)
    assert not np.array_equal(chunk, Field("u", other).chunk(0))


def test_seasons(temperature):
    january, july = temperature[: 31 * 4].mean(0), temperature[181 * 4 : 212 * 4].mean(0)
    north, south = 3, -4  # 45 degrees
    assert (july - january)[north].mean() > 10
    assert (july - january)[south].mean() < -10


def test_afternoons_are_warm_in_local_time(temperature):
    by_hour = temperature.reshape(365, 4, 13, 24).mean(0)
    equator = by_hour[:, 6]
    greenwich, date_line = equator[:, 0], equator[:, 12]
    assert greenwich.argmax() in (2, 3)  # 12 or 18 UTC
    assert date_line.argmax() in (0, 1)  # 0 or 6 UTC


def test_poles_are_cold_and_weather_has_a_memory(temperature):
    climate = temperature.mean((0, 2))
    assert climate[6] > climate[0] + 20
    anomaly = temperature[:, 4, 0] - temperature[:, 4, 0].reshape(-1, 4).mean(0)[0]
    daily = np.corrcoef(anomaly[4:], anomaly[:-4])[0, 1]
    assert daily > 0.6
