"""Which operands run a second time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.policies.stragglers import Durations, Running, choose_second_runs


def known(**usual: float) -> Durations:
    durations = Durations()
    for kind, seconds in usual.items():
        for _ in range(5):
            durations.observe(kind, seconds)
    return durations


def running(operand: str, seconds: float, worker: str = "a", kind: str = "x") -> Running:
    return Running(operand, worker, kind, seconds)


@pytest.mark.parametrize(
    ("usual", "seconds", "runs_again"),
    [(1.0, 4.1, True), (1.0, 3.9, False), (0.1, 1.9, False), (0.1, 2.1, True)],
)
def test_stragglers_exceed_both_thresholds(usual, seconds, runs_again):
    chosen = choose_second_runs([running("one", seconds)], known(x=usual), ["b"])
    assert [operand for operand, *_ in chosen] == ["one"] * runs_again


def test_the_usual_duration_needs_a_few_executions():
    durations = Durations()
    for _ in range(4):
        durations.observe("x", 1.0)
    assert durations.usual("x") is None
    assert choose_second_runs([running("one", 100.0)], durations, ["b"]) == []
    durations.observe("x", 1.0)
    assert durations.usual("x") == 1.0
    assert durations.usual("y") is None


def test_the_latest_comes_first_and_not_where_it_runs():
    late = [running("one", 5.0), running("two", 9.0, "b"), running("three", 7.0)]
    chosen = choose_second_runs(late, known(x=1.0), ["b", "c"])
    assert [where for *where, _ in chosen] == [["two", "c"], ["three", "b"]]
    assert chosen[0][2] == "runs for 9 s, usual are 1 s"


def test_the_last_executions_count_most():
    durations = known(x=1.0)
    for _ in range(200):
        durations.observe("x", 10.0)
    assert durations.usual("x") == pytest.approx(10.0, rel=0.01)


@given(
    late=st.lists(st.tuples(st.floats(0, 100), st.sampled_from("abc")), max_size=8),
    idle=st.lists(st.sampled_from("abcd"), unique=True),
)
def test_each_once_and_each_worker_once(late, idle):
    jobs = [running(str(i), seconds, worker) for i, (seconds, worker) in enumerate(late)]
    chosen = choose_second_runs(jobs, known(x=1.0), idle)
    assert len({operand for operand, *_ in chosen}) == len({worker for _, worker, _ in chosen})
    assert len({operand for operand, *_ in chosen}) == len(chosen)
    where = {job.operand: job for job in jobs}
    assert all(worker in idle and worker != where[o].worker for o, worker, _ in chosen)
    assert all(where[operand].seconds > 4.0 for operand, *_ in chosen)
