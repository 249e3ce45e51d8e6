from __future__ import annotations

from dask_marsched.policies.slots import SlotRule

MIB = 2**20


def test_a_free_thread_always_takes_one() -> None:
    assert SlotRule().admits(2, 1, None, 99.0, 1e12)


def test_long_or_unknown_operands_wait_for_a_thread() -> None:
    rule = SlotRule()
    assert not rule.admits(1, 1, None, 0.0, 0)
    assert not rule.admits(1, 1, 0.005, 0.0, 0)


def test_short_operands_have_one_in_ten_in_wait() -> None:
    rule = SlotRule()
    assert rule.admits(1, 1, 0.004, 1.0, 8 * MIB)
    assert not rule.admits(1, 2, 0.004, 1.0, 8 * MIB)
    assert rule.admits(20, 21, 0.004, 1.0, 8 * MIB)
    assert not rule.admits(20, 22, 0.004, 1.0, 8 * MIB)


def test_very_short_operands_fill_the_horizon() -> None:
    rule = SlotRule()
    assert rule.admits(1, 8, 0.001, 0.008, 100)
    assert not rule.admits(1, 9, 0.001, 0.0095, 100)
    assert rule.admits(4, 30, 0.001, 0.03, 100)


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
