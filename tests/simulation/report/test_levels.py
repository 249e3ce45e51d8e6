from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.simulation.report.timeline import busy, highest, level_at

EDGES = np.array([0.0, 1.0, 2.5, 4.0])
times = st.integers(0, 16).map(lambda quarter: quarter / 4)


@given(st.lists(st.tuples(times, st.integers(0, 9)), max_size=12))
def test_highest_is_the_highest_level_reached_in_a_bin(events):
    events.sort(key=lambda event: event[0])
    when = np.array([time for time, _ in events])
    levels = np.array([level for _, level in events], dtype=np.int64)
    found = level_at(levels, highest(when, levels, EDGES))
    for index, (begin, end) in enumerate(pairwise(EDGES)):
        last = index == len(EDGES) - 2
        before = [level for time, level in events if time < begin]
        inside = [level for time, level in events if begin <= time and (time < end or last)]
        assert found[index] == max([before[-1] if before else 0, *inside])


@given(st.lists(st.tuples(times, times).map(sorted), max_size=12))
def test_busy_is_the_mean_number_of_open_intervals(intervals):
    starts, stops = np.array(intervals, dtype=float).reshape(-1, 2).T
    found = busy(starts, stops, EDGES)
    for index, (begin, end) in enumerate(pairwise(EDGES)):
        inside = sum(max(0.0, min(stop, end) - max(start, begin)) for start, stop in intervals)
        assert np.isclose(found[index], inside / (end - begin))
