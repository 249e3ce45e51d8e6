from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.policies.placement import Candidate, MostBytes


def worker(
    input_bytes: float,
    processing: float = 0,
    stored: float = 0,
    backlog: float = 0,
    met_bytes: float = 0,
) -> Candidate:
    return Candidate("tcp://", input_bytes, processing, stored, backlog, met_bytes)


def test_most_bytes() -> None:
    assert MostBytes().choose([worker(1), worker(3, 9, 9), worker(2)]) == 1


def test_ties_are_broken_by_bytes_read_together_with_the_result() -> None:
    policy = MostBytes()
    assert policy.choose([worker(1, met_bytes=5), worker(1, met_bytes=7, processing=3)]) == 1
    assert policy.choose([worker(2), worker(1, met_bytes=7)]) == 0


def test_ties_by_operands_in_progress_then_by_memory_then_by_seniority() -> None:
    policy = MostBytes()
    assert policy.choose([worker(1, 2), worker(1, 1), worker(1, 3)]) == 1
    assert policy.choose([worker(1, 1, 0.5), worker(1, 1, 0.7), worker(1, 1, 0.2)]) == 2
    assert policy.choose([worker(1, 1, 1), worker(1, 1, 1)]) == 0


def test_an_idle_worker_is_used_if_fetching_is_much_faster_than_waiting() -> None:
    policy = MostBytes()
    busy = worker(100, 3, backlog=2.0)
    assert policy.spare(busy, [worker(0), worker(95)], bandwidth=100) == 1
    assert policy.spare(busy, [worker(0), worker(50)], bandwidth=100) is None
    assert policy.spare(busy, [], bandwidth=100) is None


def test_another_that_has_inputs_relieves_one_that_is_busy_for_longer_than_it_has_to_fetch() -> (
    None
):
    policy = MostBytes()
    busy = worker(100, 3, backlog=2.0)
    assert policy.relief(busy, [worker(50)], bandwidth=100) == 0
    assert policy.relief(busy, [worker(50, backlog=1.0), worker(40)], bandwidth=100) == 1
    assert policy.relief(busy, [worker(50, backlog=1.5)], bandwidth=100) is None
    assert policy.relief(busy, [worker(100, backlog=2.0)], bandwidth=100) is None
    assert policy.relief(busy, [], bandwidth=100) is None


def test_bytes_read_together_with_the_result_count_as_missing() -> None:
    policy = MostBytes()
    busy = worker(100, 3, backlog=2.0, met_bytes=80)
    assert policy.relief(busy, [worker(50), worker(50, met_bytes=80)], bandwidth=100) == 1
    assert policy.relief(busy, [worker(50)], bandwidth=100) is None


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=8))
def test_never_less_than_the_most(held: list[float]) -> None:
    chosen = MostBytes().choose([worker(b) for b in held])
    assert held[chosen] == max(held)
