"""What operands take, told by the high-water mark of their process."""

from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.policies.footprints import Footprints, KnownMemory
from dask_marsched.policies.memory_needs import OperandKind

MB = 10**6
KIND = OperandKind("std", 2, 64 * MB)


def started(*expected, known=None, floor=100 * MB):
    """Return footprints with operands 0, 1, ... running since a lap that has just begun."""
    footprints = Footprints()
    footprints.settle(floor, quiet=True)
    footprints.lap(floor, known or KnownMemory())
    for who, nbytes in enumerate(expected):
        footprints.begin(who, KIND, nbytes)
    return footprints


def test_a_footprint_excludes_floor_and_known_memory():
    footprints = started(10 * MB, known=KnownMemory(held=50 * MB))
    footprints.lap(
        300 * MB, KnownMemory(held=40 * MB, transfers=20 * MB, surplus=5 * MB, inputs=25 * MB)
    )
    assert footprints.end(0) == (KIND, 100 * MB)
    assert 0 not in footprints


def test_growth_is_divided_by_expected_footprints():
    footprints = started(10 * MB, 30 * MB)
    footprints.lap(180 * MB, KnownMemory())
    assert footprints.end(0)[1] == 20 * MB
    assert footprints.end(1)[1] == 60 * MB


def test_where_nothing_was_expected_all_took_the_same():
    footprints = started(0, 0)
    footprints.lap(180 * MB, KnownMemory())
    assert [footprints.end(0)[1], footprints.end(1)[1]] == [40 * MB, 40 * MB]


def test_of_several_laps_the_most_counts():
    footprints = started(10 * MB)
    for peak in (150, 220, 90):
        footprints.lap(peak * MB, KnownMemory())
    assert footprints.end(0)[1] == 120 * MB


def test_released_memory_hides_footprints_within_a_lap():
    # 64 MB leave before the operand takes 60: the high-water mark is that of the beginning.
    hidden = started(10 * MB, known=KnownMemory(held=64 * MB))
    hidden.lap(164 * MB, KnownMemory())
    assert hidden.end(0)[1] == 0
    seen = started(10 * MB, known=KnownMemory(held=64 * MB))
    assert not seen.are_hidden_by(60 * MB, 8 * MB)
    assert seen.are_hidden_by(0, 8 * MB)
    seen.lap(164 * MB, KnownMemory())
    seen.lap(160 * MB, KnownMemory())
    assert seen.end(0)[1] == 60 * MB


def test_nothing_is_hidden_where_nothing_runs():
    assert not started(known=KnownMemory(held=64 * MB)).are_hidden_by(0, 8 * MB)


def test_many_small_operands_do_not_hide_a_large_one():
    footprints = started()
    for _ in range(1000):
        footprints.grow(10_000)
    footprints.begin("large", KIND, MB)
    footprints.lap(200 * MB, KnownMemory())
    assert footprints.end("large")[1] > 99 * MB


def test_the_floor_rises_in_quiet_moments_only():
    footprints = started()
    footprints.settle(300 * MB, quiet=False)
    assert footprints.floor == 100 * MB
    footprints.settle(90 * MB, quiet=False)
    assert footprints.floor == 90 * MB
    footprints.settle(300 * MB, quiet=True)
    assert footprints.floor == 300 * MB


def test_dropped_operands_are_not_measured():
    footprints = started(10 * MB, 10 * MB)
    footprints.drop(0)
    footprints.drop(0)
    footprints.lap(180 * MB, KnownMemory())
    assert 0 not in footprints
    assert footprints.end(1)[1] == 80 * MB
    assert footprints.prefixes() == set()


@given(
    st.lists(st.integers(0, 2**40), min_size=1, max_size=8),
    st.lists(st.tuples(*[st.integers(0, 2**40)] * 5), min_size=1, max_size=8),
)
def test_footprints_sum_to_at_most_the_growth(expected, laps):
    footprints = started(*expected, floor=0)
    for peak, *known in laps:
        footprints.lap(peak, KnownMemory(*known))
    highest = max(peak for peak, *_ in laps)
    shares = [footprints.end(who)[1] for who in range(len(expected))]
    assert all(0 <= share <= highest for share in shares)
