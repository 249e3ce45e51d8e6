import pytest

from benchmarks import tiny


@pytest.mark.slow
def test_tiny_tasks_are_timed_under_each_policy_in_turn():
    found = tiny.run((200,), ("stock", "default"), 2, workers=2, others=False)
    assert [run.policy for run in found] == ["stock", "default", "default", "stock"]
    _head, *rows = tiny.cells(found)
    assert [row[:2] for row in rows] == [["map 200", "stock"], ["map 200", "default"]]
