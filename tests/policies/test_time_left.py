"""The estimate of the time that a computation goes on."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.policies.time_left import BusyThreads, Remaining, TimeLeft, time_left


def test_work_over_threads():
    assert time_left([Remaining(100, 2.0)], 10) == TimeLeft(20.0)
    assert time_left([Remaining(100, 2.0), Remaining(10, 1.0)], 10) == TimeLeft(21.0)


def test_running_operands_count_as_partly_done():
    assert time_left([Remaining(10, 2.0, running=10, spent=10.0)], 10) == TimeLeft(1.0)
    # Those that take longer than the others have not done the others' work.
    assert time_left([Remaining(10, 2.0, running=1, spent=50.0)], 1) == TimeLeft(18.0)
    assert time_left([Remaining(1, 2.0, running=1, spent=50.0)], 1) == TimeLeft(0.0)


def test_threads_that_find_nothing_to_do_do_not_count():
    assert time_left([Remaining(3, 2.0)], 1000) == TimeLeft(2.0)
    assert time_left([Remaining(1, 100.0), Remaining(99, 1.0)], 100) == TimeLeft(100.0)
    # Slower so far than there are threads: transfers, others' computations.
    assert time_left([Remaining(100, 2.0)], 10, pace=2.5) == TimeLeft(80.0)
    assert time_left([Remaining(100, 2.0)], 10, pace=40.0) == TimeLeft(20.0)


def test_unknown_durations_give_no_estimate():
    assert time_left([Remaining(5, None)], 4).seconds is None
    assert time_left([Remaining(5, None)], 4).reason == "no operand of these kinds has run yet"
    assert time_left([Remaining(5, 1.0)], 0).reason == "there are no workers"
    assert time_left([Remaining(8, 1.0), Remaining(1, None)], 4) == TimeLeft(2.0, at_least=True)
    assert time_left([Remaining(0, None)], 0) == TimeLeft(0.0)
    assert time_left([], 0) == TimeLeft(0.0)


@st.composite
def remaining(draw):
    left = draw(st.integers(0, 10**6))
    mean = draw(st.none() | st.floats(0, 1e6))
    running = draw(st.integers(0, left))
    return Remaining(left, mean, running, draw(st.floats(0, 1e9)) if running else 0.0)


@given(st.lists(remaining(), max_size=8), st.integers(0, 10**4), st.none() | st.floats(0, 1e4))
def test_it_is_never_negative_and_says_why_it_is_unknown(kinds, threads, pace):
    told = time_left(kinds, threads, pace)
    left = [kind for kind in kinds if kind.left]
    if told.seconds is None:
        assert told.reason
        assert not threads or all(kind.mean is None for kind in left) or pace
    else:
        assert told.seconds >= 0
        assert math.isfinite(told.seconds)
        assert told.reason is None
        assert told.at_least == any(kind.mean is None for kind in left)


@given(st.lists(remaining(), max_size=8), st.integers(1, 10**4), st.integers(1, 10**4))
def test_more_threads_take_no_longer(kinds, threads, more):
    few, many = time_left(kinds, threads), time_left(kinds, threads + more)
    if few.seconds is not None:
        assert many.seconds <= few.seconds * (1 + 1e-9)


@given(st.integers(1, 1000), st.floats(0.001, 100), st.integers(1, 64))
def test_it_is_no_less_than_the_work_and_no_less_than_one_operand(left, mean, threads):
    seconds = time_left([Remaining(left, mean)], threads).seconds
    assert seconds >= mean * (1 - 1e-9)
    assert seconds == pytest.approx(max(mean, left * mean / min(left, threads)))


def test_pace():
    pace = BusyThreads()
    assert pace.mean(0.0, 0.0) is None
    pace.observe(0.0, 0.0)
    pace.observe(0.5, 99.0)  # too soon to be remembered
    assert pace.mean(1.0, 4.0) is None  # too soon to be told
    assert pace.mean(10.0, 0.0) is None  # nothing was done
    assert pace.mean(10.0, 40.0) == 4.0
    for second in range(1, 61):
        pace.observe(second, 2.0 * second)
    assert pace.mean(62.0, 124.0) == 2.0  # since the first that is remembered
