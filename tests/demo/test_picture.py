from dataclasses import replace

import matplotlib.image
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from dask_marsched.demo import picture


def share(path, colour):
    """Return the share of the picture's pixels that have a colour."""
    pixels = matplotlib.image.imread(path)[:, :, :3]
    return np.isclose(pixels, to_rgb(colour), atol=0.01).all(axis=2).mean()


def test_bars_of_both_sides_are_there(tmp_path, comparisons):
    path = tmp_path / "demo.png"
    picture.draw(path, comparisons, "a caption")
    height, width, _ = matplotlib.image.imread(path).shape
    assert width >= 1200
    assert height >= 600
    # stock moves more, holds more and takes longer in the fixture: its bars are longer
    assert share(path, picture.STOCK) > share(path, picture.MARSCHED) > 0.01


def test_what_was_not_measured_has_no_panel(tmp_path, comparisons):
    whole, part = tmp_path / "whole.png", tmp_path / "part.png"
    picture.draw(whole, comparisons, "")
    without = [replace(c, stock=replace(c.stock, pss=None)) for c in comparisons]
    picture.draw(part, without, "")
    assert share(part, picture.MARSCHED) < share(whole, picture.MARSCHED)


def test_nothing_measured_at_all_can_be_drawn(tmp_path, comparisons):
    zero = replace(comparisons[0].stock, moved=0, managed=0, pss=0, seconds=0.0)
    picture.draw(tmp_path / "p.png", [replace(comparisons[0], stock=zero, marsched=zero)], "")


def test_directory_must_exist(tmp_path, comparisons):
    with pytest.raises(FileNotFoundError):
        picture.draw(tmp_path / "missing" / "demo.png", comparisons, "")
