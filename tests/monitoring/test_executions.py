"""Executions and graphs are remembered, in bounded memory."""

import pytest

from dask_marsched.monitoring import executions
from dask_marsched.monitoring.executions import Execution, Executions, execution


def part(action, start, stop):
    return {"action": action, "start": start, "stop": stop}


def test_phases_of_an_execution():
    startstops = [
        part("transfer", 11.0, 13.0),
        part("transfer", 12.0, 14.0),  # at the same time: three seconds in all
        part("disk-read", 15.0, 15.5),
        part("compute", 16.0, 20.0),
        part("disk-write", 20.0, 20.2),
    ]
    found = execution("w", 10.0, 20.25, startstops)
    assert found == Execution("w", 10.0, 2.5, 3.5, 4.0, 0.25)


def test_clocks_that_differ_make_no_negative_phase():
    assert execution("w", 10.0, 10.5, [part("compute", 9.0, 11.0)]) == Execution(
        "w", 10.0, 0.0, 0.0, 2.0, 0.0
    )


def test_without_a_computation_there_are_no_phases():
    assert execution("w", 0.0, 1.0, [part("transfer", 0.0, 1.0)]) is None


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(executions, "_MOST_EXECUTIONS", 3)
    log = Executions()
    for i in range(10):
        log.sent(i, i)
        log.finished(i, "w", i + 1, [part("compute", i, i + 1)])
    assert [log.of(i) is not None for i in range(10)] == [False] * 7 + [True] * 3
    assert len(log._sent) == 0
    for _ in range(1000):
        log.graph_arrived("c", 0.0, 1, {"x"})
    assert len(log.graphs) == 100
    assert log.graphs[-1].number == 999
    monkeypatch.setattr(executions, "_MOST_WANTED", 12)
    for wanted in (10, 2, 1):
        log.graph_arrived("c", 0.0, 20, range(wanted))
    assert [len(graph.wanted) for graph in log.graphs] == [2, 1]
    log.graph_arrived("c", 0.0, 20, range(20))  # the last one is always there
    assert [len(graph.wanted) for graph in log.graphs] == [20]


def test_operands_that_left_their_worker_are_not_remembered():
    log = Executions()
    log.sent("a", 1.0)
    log.left("a")
    log.finished("a", "w", 2.0, [part("compute", 1.0, 2.0)])
    assert log.of("a") is None


@pytest.mark.parametrize("again", [1, 2])
def test_the_last_execution_counts(again):
    log = Executions()
    for i in range(again):
        log.sent("a", i)
        log.finished("a", f"w{i}", i + 1, [part("compute", i, i + 0.5)])
    assert log.of("a").worker == f"w{again - 1}"
