from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.policies.slots import SlotRule

MIB = 2**20


def test_a_free_thread_always_takes_one() -> None:
    assert SlotRule().admits(2, 1, None, 99.0, 1e12)


def test_long_or_unknown_operands_wait_for_a_thread() -> None:
    rule = SlotRule()
    assert not rule.admits(1, 1, None, 0.0, 0)
    assert not rule.admits(1, 1, 0.005, 0.0, 8 * MIB)
    assert not rule.admits(1, 1, 0.005, 0.0, float("inf"))


def test_short_operands_have_one_in_ten_in_wait() -> None:
    rule = SlotRule()
    assert rule.admits(1, 1, 0.004, 1.0, 8 * MIB)
    assert not rule.admits(1, 2, 0.004, 1.0, 8 * MIB)
    assert rule.admits(20, 21, 0.004, 1.0, 8 * MIB)
    assert not rule.admits(20, 22, 0.004, 1.0, 8 * MIB)


def test_brief_operands_wait_for_a_thread_where_their_results_keep_little_memory() -> None:
    rule = SlotRule()
    assert rule.admits(1, 1, 0.049, 1.0, MIB)
    assert not rule.admits(1, 2, 0.049, 1.0, MIB)
    assert not rule.admits(1, 1, 0.05, 0.0, 0)


def test_brief_operands_wait_for_a_thread_where_nobody_reads_their_results() -> None:
    rule = SlotRule()
    assert rule.admits(1, 1, 0.049, 1.0, 8 * MIB, read=False)
    assert not rule.admits(1, 2, 0.049, 0.0, 0, read=False)
    assert not rule.admits(1, 1, 0.05, 0.0, 0, read=False)
    assert not rule.admits(1, 1, 0.049, 0.0, 8 * MIB)


def test_very_short_operands_fill_the_horizon() -> None:
    rule = SlotRule()
    assert rule.admits(1, 4, 0.001, 0.004, 100)
    assert not rule.admits(1, 5, 0.001, 0.005, 100)
    assert rule.admits(4, 21, 0.001, 0.021, 100)
    assert not rule.admits(4, 23, 0.001, 0.023, 100)


def test_the_worker_overhead_counts_for_short_operands() -> None:
    rule = SlotRule()
    assert rule.admits(1, 12, 0.0, 0.0, 100)
    assert not rule.admits(1, 14, 0.0, 0.0, 100)
    assert rule.admits(1, 14, 0.0, 0.0, 100, read=False)


def test_the_horizon_is_bounded_in_bytes() -> None:
    rule = SlotRule()
    assert rule.admits(1, 2, 0.001, 0.002, MIB / 2)
    assert not rule.admits(1, 3, 0.001, 0.003, MIB / 2)
    assert not rule.admits(1, 2, 0.001, 0.002, float("inf"))


def test_a_saturation_below_one_leaves_threads_free() -> None:
    rule = SlotRule(saturation=0.5)
    assert rule.admits(4, 1, 0.001, 0.0, 0)
    assert not rule.admits(4, 2, 0.001, 0.0, 0)
    assert rule.admits(1, 0, None, 0.0, 0)


def test_one_in_ten_threads_may_have_one_in_wait_where_that_holds_nothing_back() -> None:
    rule = SlotRule()
    assert rule.may_wait(1, 1)
    assert not rule.may_wait(1, 2)
    assert rule.may_wait(10, 10)
    assert not rule.may_wait(10, 11)
    assert rule.may_wait(20, 21)
    assert not rule.may_wait(20, 22)


@given(nthreads=st.integers(1, 64), in_progress=st.integers(0, 80), saturation=st.floats(0.05, 1.0))
def test_at_a_saturation_of_one_or_less_nothing_waits(
    nthreads: int, in_progress: int, saturation: float
) -> None:
    rule = SlotRule(saturation=saturation)
    assert rule.may_wait(nthreads, in_progress) == rule.has_free_slot(nthreads, in_progress)


def test_more_than_the_default_waits_where_the_user_asks_for_it() -> None:
    assert [SlotRule(saturation=2.5).has_free_slot(2, having) for having in (4, 5)] == [True, False]
    assert [SlotRule().has_free_slot(2, having) for having in (1, 2)] == [True, False]


def test_short_operands_are_shared_out_over_busy_workers() -> None:
    assert [SlotRule(saturation=1.0).shares_out(2, having) for having in (2, 3)] == [True, False]
    for saturation in (0.5, 1.1, 2.5):  # Dask's idle workers are enough
        assert not SlotRule(saturation=saturation).shares_out(2, 0)


@given(
    nthreads=st.integers(1, 8),
    in_progress=st.integers(0, 30),
    saturation=st.floats(0.05, 3.0),
    backlog=st.floats(0.0, 0.1),
    duration=st.none() | st.floats(0.0, 0.02),
    nbytes=st.floats(0.0, 2.0 * MIB),
)
def test_a_full_worker_gets_nothing(
    nthreads: int,
    in_progress: int,
    saturation: float,
    backlog: float,
    duration: float | None,
    nbytes: float,
) -> None:
    rule = SlotRule(saturation=saturation)
    if rule.is_full(nthreads, in_progress, backlog):
        assert not rule.admits(nthreads, in_progress, duration, backlog, nbytes)
        assert not rule.may_wait(nthreads, in_progress)


def test_full_is_who_has_more_in_wait_than_the_horizon() -> None:
    rule = SlotRule()
    assert not rule.is_full(1, 1, 1.0)
    assert not rule.is_full(1, 2, 0.01)
    assert rule.is_full(1, 2, 0.011)
    assert SlotRule(saturation=0.5).is_full(4, 2, 0.0)


def test_one_more_of_a_tile_for_each_thread_may_fetch() -> None:
    rule = SlotRule()
    assert [rule.may_fetch(2, having) for having in (1, 3, 4)] == [True, True, False]
    assert not SlotRule(saturation=0.5).may_fetch(2, 0)
