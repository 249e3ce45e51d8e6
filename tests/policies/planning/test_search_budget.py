"""How long to search for a plan follows what it can win."""

import math

from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.core.plan import WorkerSlot
from dask_marsched.policies.planning.plan_search import (
    Search,
    extent_of_search,
    seconds_at_stake,
)
from tests.graphs import tree

seconds = st.floats(0, 1e3)
ORDER = [Search.NONE, Search.IN_BACKGROUND, Search.BEFORE_START]


def test_little_is_at_stake_in_little_data() -> None:
    workers = [WorkerSlot("a", 1), WorkerSlot("b", 1)]
    small = tree(32, 4)
    large = small.with_nbytes([1e8] * len(small), small.known)
    assert seconds_at_stake(small, workers) < 1e-5
    assert seconds_at_stake(large, workers) > 10
    assert seconds_at_stake(large, workers * 2) == seconds_at_stake(large, workers) / 2
    assert math.isfinite(seconds_at_stake(large, []))


def test_a_long_worthwhile_search_runs_in_the_background() -> None:
    assert extent_of_search(0.0, 0.0) is Search.BEFORE_START  # nothing to be searched
    assert extent_of_search(0.001, 1.0) is Search.BEFORE_START
    assert extent_of_search(0.1, 1.0) is Search.IN_BACKGROUND
    assert extent_of_search(0.1, 0.2) is Search.NONE
    assert extent_of_search(1.0, 1e6) is Search.IN_BACKGROUND  # however much there is at stake


@given(effort=seconds, at_stake=seconds, more=seconds)
def test_more_at_stake_or_less_effort_never_means_less_search(
    effort: float, at_stake: float, more: float
) -> None:
    found = ORDER.index(extent_of_search(effort, at_stake))
    assert ORDER.index(extent_of_search(effort, at_stake + more)) >= found
    assert ORDER.index(extent_of_search(effort + more, at_stake)) <= found
