"""The time that the scheduler takes for graphs and their first tasks."""

import pytest

from benchmarks.scheduler import first_task, planning

MIB = 2**20


@pytest.mark.extended
@pytest.mark.timeout(180)
def test_planning_is_timed_in_processes_of_its_own():
    joined, apart = (planning.measure(policy, 500, 0) for policy in ("default", "default+off"))
    for result in (joined, apart):
        assert result.error is None
        assert 0 < result.seconds < 60
    assert 400 < apart.tasks < 600
    assert 100 < joined.tasks < 0.75 * apart.tasks


@pytest.mark.slow
def test_first_tasks_are_timed_under_each_policy_in_turn():
    found = first_task.run(("stock", "default"), [100], 1)
    assert [(a.shape, a.policy, a.again) for a in found] == [
        (shape, policy, again)
        for shape in first_task.SHAPES
        for policy in ("stock", "default")
        for again in (False, True)
    ]
    assert all(80 < a.tasks < 250 and 0 < a.seconds < 60 for a in found)
    assert len(first_task.cells(found)) == 1 + len(found)


def test_planning_table_relates_to_stock_of_the_same_repetition():
    measured = [
        planning.Planning("stock", 1000, 0, 1000, 1.0, 100 * MIB),
        planning.Planning("default", 1000, 0, 1000, 1.1, 110 * MIB),
        planning.Planning("stock", 1000, 1, 1000, 2.0, 100 * MIB),
        planning.Planning("default", 1000, 1, 1000, 2.2, 126 * MIB),
    ]
    _, stock, plugin = planning.cells(measured)
    assert stock == ["stock", "1000", "1.50", "1.00", "1500.0", "100", "1.00", "0", "-"]
    assert plugin == ["default", "1000", "1.65", "1.10", "1650.0", "118", "1.18", "0", "met"]


def test_planning_that_failed_is_shown():
    measured = [
        planning.Planning("stock", 10, 0, 10, 1.0, MIB),
        planning.Planning("default", 10, 0, error="the scheduler ended early"),
    ]
    assert planning.cells(measured)[2] == ["default", "-", "-", "-", "-", "-", "-", "1", "-"]
