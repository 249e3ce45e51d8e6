"""How many operands may be on the way, where the scheduler is what all others wait for."""

from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.policies.dispatch_pace import ROUND_TRIP, SURPLUS, DispatchPace

durations = st.floats(0, 100)


def experienced(duration: float, scheduler_time: float = 0.0007) -> DispatchPace:
    pace = DispatchPace(scheduler_time)
    pace.sent("before", 0.0)
    pace.ended("before", duration)
    return pace


def test_few_short_ones_keep_a_scheduler_busy() -> None:
    assert 80 < experienced(0.005).most(1.0) < 90
    assert experienced(0.05).most(1.0) > 300


def test_operands_in_flight_take_room() -> None:
    pace = experienced(0.005)
    room = pace.room(1.0)
    pace.sent("a", 1.0)
    pace.sent("b", 1.0)
    assert pace.room(1.0) == room - 2
    pace.ended("a", 0.005)
    pace.forget("b")
    assert pace.room(1.0) == room


def test_one_that_was_never_sent_changes_nothing() -> None:
    pace = experienced(0.005)
    before = pace.most(1.0)
    pace.ended("of another plugin", 60.0)
    pace.forget("of another plugin")
    assert pace.most(1.0) == before


def test_as_long_as_no_duration_is_known_time_tells() -> None:
    pace = DispatchPace(0.0007)
    assert pace.most(0.0) == SURPLUS * ROUND_TRIP / 0.0007
    pace.sent("a", 0.0)
    assert pace.most(ROUND_TRIP) == SURPLUS * ROUND_TRIP / 0.0007
    assert pace.most(1.0) > 1000


def test_long_ones_among_short_ones_do_not_hold_others_back() -> None:
    pace = experienced(0.001)
    count = 0
    while pace.room(1.0) > 0:
        pace.sent(count, 1.0)
        count += 1
    assert pace.room(1.05) <= 0
    assert pace.room(1.1) > count - 1


def test_durations_are_a_mean() -> None:
    pace = experienced(0.001)
    for operand in range(200):
        pace.sent(operand, 1.0)
        pace.ended(operand, 0.1)
    assert 0.09 < pace.most(1.0) * 0.0007 / SURPLUS - ROUND_TRIP <= 0.1


@given(durations, durations, st.floats(1e-5, 0.1))
def test_longer_operands_are_never_bounded_more(a: float, b: float, seconds: float) -> None:
    short, long = sorted((a, b))
    assert experienced(short, seconds).most(1.0) <= experienced(long, seconds).most(1.0)


@given(st.lists(st.tuples(durations, durations), max_size=50), st.floats(1e-5, 0.1))
def test_there_is_room_again_after_some_time(
    sent: list[tuple[float, float]], seconds: float
) -> None:
    """Whatever becomes of what was sent: nothing waits for ever."""
    pace = DispatchPace(seconds)
    now = 0.0
    for number, (after, duration) in enumerate(sent):
        now += after
        pace.sent(number, now)
        if number % 2:
            pace.ended(number, duration)
    assert pace.room(now + 3 * pace.most(now) * seconds + 1000) > 0
