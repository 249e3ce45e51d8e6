"""Which results get a second copy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.policies.replication import (
    ReplicaCandidate,
    choose_replicas,
    recomputation_seconds,
)


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (set(), 1 + 2 + 4 + 8),  # each once, though two ways lead to the first
        ({"first"}, 2 + 4 + 8),
        ({"left", "right"}, 8),
        ({"left"}, 1 + 4 + 8),
    ],
)
def test_the_cost_of_a_loss_includes_released_inputs(held, expected):
    inputs = {"first": [], "left": ["first"], "right": ["first"], "last": ["left", "right"]}
    seconds = {"first": 1.0, "left": 2.0, "right": 4.0, "last": 8.0}
    found = recomputation_seconds(
        "last", inputs.__getitem__, held.__contains__, seconds.__getitem__
    )
    assert found == expected


def test_a_long_chain_is_followed_to_a_limit():
    looked_at = []

    def inputs(i):
        looked_at.append(i)
        return [i + 1]

    assert recomputation_seconds(0, inputs, lambda i: False, lambda i: 1.0) > 1000
    assert len(looked_at) < 3000


def test_the_most_seconds_for_each_byte_come_first():
    candidates = [
        ReplicaCandidate("cheap", 10, 9.0),
        ReplicaCandidate("large", 1000, 50.0),
        ReplicaCandidate("small", 10, 20.0),
        ReplicaCandidate("middle", 100, 50.0),
    ]
    assert choose_replicas(candidates, 10_000) == ["small", "middle", "large"]
    assert choose_replicas(candidates, 1010) == ["small", "middle"]
    assert choose_replicas(candidates, 50) == ["small"]
    assert choose_replicas(candidates, 0) == []


@given(
    st.lists(st.tuples(st.integers(0, 100), st.floats(0, 100)), max_size=20), st.integers(0, 500)
)
def test_the_budget_holds(given_, budget):
    candidates = [
        ReplicaCandidate(i, nbytes, seconds) for i, (nbytes, seconds) in enumerate(given_)
    ]
    chosen = choose_replicas(candidates, budget)
    assert len(set(chosen)) == len(chosen)
    assert sum(given_[i][0] for i in chosen) <= budget
    assert all(given_[i][1] >= 10.0 for i in chosen)
    # What was left out would not have fit after those before it.
    assert all(
        i in chosen or nbytes == 0 or seconds < 10.0 or nbytes > budget - sum(
            given_[j][0] for j in chosen if given_[j][1] / given_[j][0] >= seconds / nbytes
        )
        for i, (nbytes, seconds) in enumerate(given_)
    )  # fmt: skip
