import pytest

from dask_marsched.demo.layout import Layout


def test_default_has_chunks_of_tens_of_megabytes():
    layout = Layout()
    assert layout.shape == (365 * 24, 91, 180)
    assert layout.nbytes >= 1.5 * 2**30
    assert 16e6 <= layout.chunk_nbytes <= 64e6


def test_chunk_is_no_longer_than_the_axis():
    assert Layout(days=10).chunks[0] == 240


@pytest.mark.parametrize("resolution", [0.1, 7.0, 0.0, -2.0, 90.0, float("nan")])
def test_bad_resolution_is_named(resolution):
    with pytest.raises(ValueError, match=f"resolution is {resolution}: accepted are 0.25 to 45"):
        Layout(resolution)


@pytest.mark.parametrize("resolution", [0.25, 0.3, 1.5, 2.5, 15, 45])
def test_resolution_that_divides_the_half_circle(resolution):
    _, latitudes, longitudes = Layout(resolution).shape
    assert (latitudes - 1) * resolution == pytest.approx(180)
    assert longitudes * resolution == pytest.approx(360)
