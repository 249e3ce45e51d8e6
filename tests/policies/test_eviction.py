"""What leaves memory first."""

from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.policies.eviction import Resident, coldest

READ_SOON = Resident(("soon",), 10, (1,), (0,))
READ_LATE = Resident(("late",), 10, (9,), (0,))
OLD = Resident(("old",), 10, None, (2,))
NEW = Resident(("new",), 10, None, (3,))
ALL = [READ_SOON, OLD, READ_LATE, NEW]


def keys(residents):
    return [key for resident in residents for key in resident.keys]


def test_order():
    assert keys(coldest(ALL, 1000)) == ["new", "old", "late", "soon"]
    assert keys(coldest(ALL, 15)) == ["new", "old"]
    assert coldest(ALL, 0) == []


def test_results_in_use_or_read_earlier_stay():
    assert keys(coldest(ALL, 1000, keep={"new", "late"})) == ["old", "soon"]
    assert keys(coldest(ALL, 1000, before=(5,))) == ["new", "old", "late"]


def test_results_that_share_memory_stay_together():
    both = Resident(("whole", "view"), 20, None, (2,), staying=("edge",))
    for key in ("whole", "view", "edge"):
        assert coldest([both], 5, keep={key}) == []
    assert coldest([both], 5, keep={"another"}) == [both]


def test_small_ones_come_after_large_ones():
    small = Resident(("small",), 1, None, (4,))
    large = Resident(("large",), 1000, (9,), (4,))
    assert keys(coldest([small, large], 1000)) == ["large"]
    assert keys(coldest([small, large], 1001)) == ["large", "small"]


def test_results_of_scatter_have_any_priority():
    assert keys(coldest([Resident(("x",), 5, None, None), OLD], 100)) == ["x", "old"]


@given(
    st.lists(
        st.builds(
            Resident,
            keys=st.tuples(st.integers()),
            nbytes=st.integers(0, 100),
            next_use=st.none() | st.tuples(st.integers(0, 9)),
            made=st.tuples(st.integers(0, 9)),
        ),
        unique_by=lambda resident: resident.keys,
    ),
    st.integers(0, 500),
)
def test_enough_and_not_more(residents, nbytes):
    chosen = coldest(residents, nbytes)
    assert len({r.keys for r in chosen}) == len(chosen)
    freed = sum(r.nbytes for r in chosen)
    assert freed >= min(nbytes, sum(r.nbytes for r in residents))
    if chosen:
        assert freed - chosen[-1].nbytes < nbytes
