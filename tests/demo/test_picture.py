from dataclasses import replace

import matplotlib.image
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from dask_marsched.demo import picture
from dask_marsched.demo.comparison import compare


def share(path, colour):
    """Return the share of the picture's pixels that have a colour."""
    pixels = matplotlib.image.imread(path)[:, :, :3]
    return np.isclose(pixels, to_rgb(colour), atol=0.01).all(axis=2).mean()


def test_bars_of_both_sides_are_there(tmp_path, comparisons):
    path = tmp_path / "demo.png"
    picture.draw(path, comparisons, ["A sentence."], "a caption")
    height, width, _ = matplotlib.image.imread(path).shape
    assert width >= 1200
    assert height >= 500
    # stock moves more, holds more and takes longer in the fixture: its bars are longer
    assert share(path, picture.STOCK) > share(path, picture.OURS) > 0.01


def test_what_was_not_measured_has_no_bar(tmp_path, measurements):
    whole, part = tmp_path / "whole.png", tmp_path / "part.png"
    picture.draw(whole, compare(measurements), [], "")
    picture.draw(part, compare([replace(m, pss=None) for m in measurements]), [], "")
    assert share(part, picture.OURS) < share(whole, picture.OURS)


def test_directory_must_exist(tmp_path, comparisons):
    with pytest.raises(FileNotFoundError):
        picture.draw(tmp_path / "missing" / "demo.png", comparisons, [], "")
