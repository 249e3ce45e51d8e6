"""Whole programs: their table, and what runs them."""

import functools
import inspect
import threading

import pytest

from benchmarks import suite_tables
from benchmarks.findings import Findings
from benchmarks.programs import arrays, frames, futures, labelled, runner
from dask_marsched.bench import runner as bench_runner
from dask_marsched.bench.cluster import RunFailed
from dask_marsched.bench.metrics import aggregate


def test_every_program_is_in_the_table_once():
    written = [
        function
        for module in (frames, futures, arrays, labelled)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    ]
    listed = [program.run for program in runner.PROGRAMS.values()]
    assert sorted(listed, key=repr) == sorted(written, key=repr)


def test_programs_say_whether_they_write_files():
    for program in runner.PROGRAMS.values():
        assert program.files == ("scratch" in inspect.signature(program.run).parameters)


def test_programs_are_chosen_by_name():
    assert [w.name for w in runner.select()] == list(runner.PROGRAMS)
    assert [w.name for w in runner.select(["mask", "zarr"])] == ["mask", "zarr"]
    with pytest.raises(ValueError, match="no programs named nothing; accepted: frame-groupby, "):
        runner.select(["mask", "nothing"])


def test_a_program_that_takes_too_long_has_failed():
    ended = threading.Event()
    try:
        with pytest.raises(RunFailed, match=r"not done in 0\.01 s"):
            runner.call_within(0.01, ended.wait)
    finally:
        ended.set()


def test_a_program_that_fails_tells_why():
    def fail():
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        runner.call_within(60, fail)
    assert runner.call_within(60, int, "5") == 5


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame")  # Dask's
def test_programs_run_under_each_policy_and_leave_no_files(tmp_path):
    findings = Findings()
    policies = ("stock", "default")
    openers = dict.fromkeys(policies, functools.partial(runner.ProgramCluster, findings))
    chosen = runner.select(["bag-words", "frame-parquet"])
    setting = runner.setting(2, 1, 60.0, tmp_path)
    found = bench_runner.run(chosen, policies, 1, setting, openers=openers)
    rows = aggregate(found.measurements)
    assert [(row.workload, row.errors, row.identical) for row in rows] == [
        (workload.name, (), True) for workload in chosen for _ in policies
    ]
    assert not findings.faulty
    assert not list(tmp_path.iterdir())
    shown, _means = suite_tables.tables(rows, runner.BARS)
    assert [line[:2] for line in shown[1:]] == [[r.workload, r.policy] for r in rows]
