import pytest

from dask_marsched.demo.layout import VARIABLES, Layout


def test_default_is_a_gibibyte_or_more_in_chunks_of_usual_size():
    layout = Layout()
    assert layout.shape == (3 * 365 * 4, 121, 240)
    assert layout.nbytes == len(VARIABLES) * layout.variable_nbytes >= 2**30
    assert 8 * 2**20 <= layout.chunk_nbytes <= 32 * 2**20


def test_chunk_is_no_longer_than_the_axis():
    assert Layout(years=1, days_per_chunk=365).chunks[0] == 365 * 4


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"years": 0}, "years is 0: accepted are 1 to 100"),
        ({"resolution": 0.1}, "resolution is 0.1: accepted are 0.25 to 45"),
        ({"resolution": 7.0}, "resolution is 7.0"),
        ({"days_per_chunk": 0}, "days_per_chunk is 0"),
    ],
)
def test_bad_value_is_named(values, named):
    with pytest.raises(ValueError, match=named):
        Layout(**values)


@pytest.mark.parametrize("resolution", [0.25, 0.3, 1.5, 2.5, 15, 45])
def test_resolution_that_divides_the_half_circle(resolution):
    _, latitudes, longitudes = Layout(resolution=resolution).shape
    assert (latitudes - 1) * resolution == pytest.approx(180)
    assert longitudes * resolution == pytest.approx(360)
