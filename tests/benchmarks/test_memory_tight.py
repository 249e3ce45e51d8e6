"""The memory-tight benchmark: a real run of it, and its table."""

import pytest

from benchmarks.memory_tight import COMPARED, TightRun, cells, measure, measure_all


@pytest.mark.extended
def test_a_run_with_the_plugin():
    run = measure("anomaly", "default", 0, size=0.1, timeout=60)
    assert run.error is None
    assert run.result == pytest.approx(12**-0.5, rel=0.01)
    assert run.restarts == run.long_pauses == 0
    assert 0.1 < run.peak < 1
    assert run.spilled is not None


@pytest.mark.slow
def test_operands_that_take_most_of_a_worker_come_through():
    # Where all that one of them makes stayed in memory until it ends, every worker died.
    run = measure("narrowed", "default", 0, size=1.0, timeout=120)
    assert (run.error, run.restarts) == (None, 0)
    assert run.result == pytest.approx(12**-0.5, rel=1e-3)


@pytest.mark.extended
def test_a_run_that_takes_too_long_is_a_failure():
    run = measure("anomaly", "stock", 0, size=0.1, timeout=0.001)
    assert run.error.startswith("TimeoutError")
    assert run.seconds is run.result is run.spilled is None


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="no workload 'x'; there are anomaly, rechunk"):
        measure_all(["x"], 1, 1.0, 1.0, print)


def test_the_table_compares_with_the_better_stock():
    runs = [
        TightRun("a", "stock", 0, error="KilledWorker", restarts=3, pauses=[0.5, 2.0], peak=0.96),
        TightRun("a", "tuned", 0, seconds=10.0, spilled=2_000_000, peak=0.8),
        TightRun("a", "default", 0, seconds=5.0, spilled=1_000_000, peak=0.7),
        TightRun("a", "default", 1, seconds=7.0, spilled=1_000_000, peak=0.75),
    ]
    table = cells(runs)
    assert table[1] == ["a", "stock", "", "", "1/1", "3", "1", "96%", "", ""]
    assert table[2] == ["a", "tuned", "10.0", "1.00", "0/1", "0", "0", "80%", "2", "1.00"]
    assert table[3] == ["a", "default", "6.0", "0.60", "0/2", "0", "0", "75%", "1", "0.50"]
    assert table[4][3] == "0.60"
    assert {len(line) for line in table} == {len(table[0])}
    assert [line[1] for line in table[1:4]] == list(COMPARED)
