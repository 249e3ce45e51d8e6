import pytest

from benchmarks.scheduler import observer_cost


@pytest.mark.slow
def test_a_real_scheduler_with_and_without_the_observer():
    pairs = observer_cost.throughput(100, 2)
    assert len(pairs) == 2
    assert all(seconds > 0 for pair in pairs for seconds in pair)


def test_both_the_median_and_all_together_have_to_be_within_the_bar():
    head, row = observer_cost.cells([(1.0, 1.0), (0.98, 1.0), (0.9, 1.0)])
    found = dict(zip(head, row, strict=True))
    assert (found["median x"], found["all x"]) == ("0.980", "0.960")
    assert found["verdict"] == "not met"
    assert observer_cost.cells([(1.0, 1.0), (0.99, 1.0)])[1][-1] == "met"
