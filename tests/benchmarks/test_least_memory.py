"""The search for the least memory that suffices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.least_memory import Least, bisect, cells, find_all


@given(st.integers(1, 400), st.integers(1, 30))
def test_the_least_that_suffices_is_found(least, step):
    tried = []

    def suffices(limit):
        tried.append(limit)
        return limit >= least

    found = bisect(suffices, 0, 300, step)
    if least > 300:
        assert found is None
    else:
        assert suffices(found)
        assert not suffices(found - step)
    assert len(tried) < 15


def test_the_table_compares_with_stock():
    found = [
        Least("a", "stock", 900_000_000, ()),
        Least("a", "default", 400_000_000, ()),
        Least("b", "stock", None, ()),
        Least("b", "default", 500_000_000, ()),
    ]
    assert cells(found) == [
        ["workload", "stock, MB", "default, MB", "ours / stock"],
        ["a", "900", "400", "0.44"],
        ["b", "", "500", ""],
    ]


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="no policy 'x'; there are stock"):
        find_all([], ["x"], 1, 1.0, 1.0, print)
