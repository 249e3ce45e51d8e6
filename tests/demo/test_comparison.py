from dataclasses import replace

import pytest

from dask_marsched.bench.report import text_table
from dask_marsched.demo.comparison import cells, compare, sentences


def test_ratios(comparisons):
    eddies, killed = comparisons
    assert eddies.ratio("moved") == 0.05
    assert eddies.ratio("again") is None  # of nothing
    assert killed.ratio("moved") is None  # not known
    assert killed.ratio("again") == 0.025


def test_rounds_are_put_together_by_their_median(measurements):
    again = [replace(m, repetition=1, seconds=m.seconds + 2) for m in measurements]
    eddies, _ = compare([*measurements, *again])
    assert eddies.stock["seconds"] == pytest.approx(13.34)
    assert eddies.same


@pytest.mark.parametrize("position", range(4))
def test_one_result_that_differs_is_told(measurements, position):
    measurements[position] = replace(measurements[position], digest="b")
    comparisons = compare(measurements)
    assert [c.same for c in comparisons] == [position >= 2, position < 2]
    assert sum(line.endswith(" NO") for line in text_table(cells(comparisons)).splitlines()) == 1


def test_a_pss_of_nothing_is_unknown(measurements):
    eddies, _ = compare([replace(m, pss=0) for m in measurements])
    assert eddies.stock["pss"] is eddies.ours["pss"] is None


def test_table(comparisons):
    lines = text_table(cells(comparisons)).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[2].split() == ["eddies", "stock", "Dask", "12.3", "1,200", "300", "900", "0"]
    assert lines[3].split() == ["dask-marsched", "10.0", "60", "150", "900", "0", "yes"]
    assert lines[4].split() == ["of", "stock's", "0.81", "0.05", "0.50", "1.00", "-"]
    assert lines[6].split() == ["dask-marsched", "11.0", "-", "300", "-", "2", "yes"]


def test_sentences(comparisons):
    analyses, kill = sentences(comparisons)
    assert "took 0.81 of stock Dask's time, moved 0.05 of its bytes, used 1.00 of its" in analyses
    assert "computed again: 2, stock Dask 80; wall time: 11.0 s, stock Dask 20.0 s." in kill
