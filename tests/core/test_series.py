from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.core.series import Series


def test_rows_come_back_as_columns():
    series = Series(("a", "b"))
    assert series.to_dict() == {"time": [], "a": [], "b": []}
    series.add(1.0, (2, 3))
    series.add(2.0, (4, 5))
    assert series.to_dict() == {"time": [1.0, 2.0], "a": [2, 4], "b": [3, 5]}


def test_it_is_due_after_its_interval():
    series = Series(("a",), every=2.0)
    assert series.due(0.0)
    series.add(10.0, (0,))
    assert not series.due(11.9)
    assert series.due(12.0)


def test_a_full_one_is_thinned_and_takes_half_as_many():
    series = Series(("a",), most=4)
    for now in range(5):
        series.add(float(now), (now,))
    assert series.to_dict() == {"time": [0.0, 2.0, 4.0], "a": [0, 2, 4]}
    assert series.every == 2.0


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=200), st.integers(4, 20))
def test_a_series_is_bounded_and_monotonic_from_its_first_row(times, most):
    series = Series(("a",), most=most)
    for now in times:
        series.add(now, (now,))
    found = series.to_dict()["time"]
    assert len(found) <= most
    assert found[0] == times[0]
    assert found == sorted(found)
