"""Pictures: everything that is given is in them, inside of their borders."""

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.report import charts

NUMBER = re.compile(r"-?\d+\.?\d*")


def svg(figure: str) -> ElementTree.Element:
    found = ElementTree.fromstring(figure)
    return found if found.tag == "svg" else found.find("svg")


def points(path: ElementTree.Element) -> list[tuple[float, float]]:
    numbers = [float(n) for n in NUMBER.findall(path.get("d") or "")]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def texts(picture: ElementTree.Element) -> list[str]:
    return [one.text for one in picture.iter("text")]


@given(st.floats(min_value=1e-6, max_value=1e15))
def test_ticks_are_round_and_reach_to_the_end(most):
    found = charts.ticks(most)
    assert found[0] == 0
    assert found[-1] >= most * (1 - 1e-6)
    assert 2 <= len(found) <= 7
    step = found[1]
    mantissa = step / 10 ** math.floor(math.log10(step) + 1e-9)
    assert min(abs(mantissa - m) for m in (1, 2, 5, 10)) < 1e-6


@pytest.mark.parametrize("most", [0.0, 5e-324, -1.0, float("nan")])
def test_ticks_of_nothing(most):
    assert charts.ticks(most) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("most", "unit"),
    [(0, "B"), (1023, "B"), (1024, "KiB"), (5 * 2**30, "GiB"), (2.0**80, "PiB")],
)
def test_the_unit_suits_the_values(most, unit):
    assert charts.byte_scale(most)[1] == unit


@given(
    st.lists(
        st.tuples(st.floats(0, 1e6), st.floats(0, 1e12), st.none() | st.floats(0, 1e12)),
        max_size=30,
    )
)
def test_lines_stay_inside(rows):
    times = sorted(row[0] for row in rows)
    drawn = [("a", [r[1] for r in rows], "c0"), ("b", [r[2] for r in rows], "c1")]
    picture = svg(charts.lines(times, drawn, "bytes", {"limit": 5e11}))
    paths = list(picture.iter("path"))
    assert len(paths) == 2
    assert len(points(paths[0])) == len(rows)
    assert len(points(paths[1])) == sum(r[2] is not None for r in rows)
    for path in paths:
        for x, y in points(path):
            assert 0 <= x <= charts.WIDTH
            assert 0 <= y <= charts.HEIGHT
    assert "seconds" in texts(picture)
    assert "limit" in texts(picture)


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=2, max_size=20))
def test_layers_stand_on_each_other(rows):
    times = list(range(len(rows)))
    drawn = [("low", [a for a, _ in rows], "c0"), ("high", [b for _, b in rows], "c1")]
    figure = charts.layers(times, drawn, "operands")
    found = [points(path) for path in svg(figure).iter("path")]
    for path in found:
        upper, lower = path[: len(rows)], path[len(rows) :][::-1]
        assert all(u[0] == b[0] and u[1] <= b[1] for u, b in zip(upper, lower, strict=True))
    # What is nowhere above zero is neither drawn nor in the legend.
    assert len(found) == sum(any(values) for _, values, _ in drawn)
    assert [name for name, values, _ in drawn if f"</i>{name}<" in figure] == [
        name for name, values, _ in drawn if any(values)
    ]


def test_a_plan_has_every_cell_in_the_colour_of_its_worker():
    picture = {"columns": 3, "rows": 2, "workers": ["tcp://a", "tcp://<b>"]}
    cells = {"column": [0, 1, 2, 2], "row": [0, 0, 1, 0], "worker": [0, 1, 1, -1]}
    figure = charts.plan({**picture, "cells": cells})
    paths = {one.find("title").text: one for one in svg(figure).iter("path")}
    assert {name: one.get("d").count("M") for name, one in paths.items()} == {
        "tcp://a": 1,
        "tcp://<b>": 2,
        "on no worker": 1,
    }
    assert paths["tcp://<b>"].get("class") == "area c1"
    assert "<b>" not in figure


def test_the_legend_of_a_large_cluster_is_short():
    cells = {"column": [0] * 40, "row": list(range(40)), "worker": list(range(40))}
    picture = {"columns": 1, "rows": 40, "workers": [f"w{i}" for i in range(40)]}
    assert charts.plan({**picture, "cells": cells}).count('class="key') == charts.COLOURS + 2


def test_bars_are_as_long_as_they_are_large():
    figure = charts.bars([("a", 50, "c0", "50 B"), ("b", 100, "c1", "100 B")], "bytes", 100)
    a, b = (float(one.get("width")) for one in svg(figure).iter("rect"))
    assert b == 2 * a
