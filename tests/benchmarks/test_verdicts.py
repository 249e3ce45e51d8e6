"""Bars on the ratios to stock, and the comparison with Frisky."""

import json

import pytest

from benchmarks import verdicts
from benchmarks.verdicts import FRISKY
from dask_marsched.bench.metrics import Measurement, aggregate, summarise
from dask_marsched.bench.runner import Outcome

MIB = 2**20


def measured(policy, workload="binary-mean", seconds=1.0, moved=100 * MIB, managed=50, **more):
    more = {"pss": 1000, "sent": 10, "digest": "same", **more}
    return Measurement(workload, policy, 0, seconds=seconds, moved=moved, managed=managed, **more)


def misses(policy, *runs):
    (row,) = [row for row in aggregate(runs) if row.policy == policy]
    return verdicts.misses(row)


@pytest.mark.parametrize(
    ("mean", "worst", "met"), [((0.1, 0.1), 0.1, True), ((0.01, 1.2), 1.2, False)]
)
def test_verdict_needs_the_mean_and_the_worst(mean, worst, met):
    runs = []
    for name, factor in zip("ab", mean, strict=True):
        runs.append(measured("stock", name))
        runs.append(measured("default", name, moved=int(factor * 100 * MIB)))
    summary = summarise(aggregate(runs))[0]
    assert summary.worst == pytest.approx(worst)
    assert summary.mean < 0.15
    assert verdicts.met(summary) is met


def test_overhead_workloads_have_a_bar_on_time_whatever_they_move():
    for workload, found in (("tiny-tasks", ("seconds",)), ("binary-mean", None)):
        runs = (measured(p, workload, s, moved=0) for p, s in (("stock", 1), ("default", 1.06)))
        assert misses("default", *runs) == found


@pytest.mark.parametrize(("moved", "found"), [(100 * MIB + 900, ()), (101 * MIB, ("moved",))])
def test_ratios_are_judged_to_two_decimals(moved, found):
    assert misses("default", measured("stock"), measured("default", moved=moved)) == found


def test_failures_and_other_results_are_faults():
    stock = measured("stock")
    assert misses("default", stock, measured("default", digest="other")) == ("results differ",)
    failed = Measurement("binary-mean", "default", 0, error="KilledWorker")
    assert misses("default", stock, failed) == ("failed",)
    assert misses("stock", stock) is None
    assert misses(FRISKY, stock, measured(FRISKY, seconds=9.0)) is None


def test_tables_show_verdicts_and_frisky_only_if_it_ran():
    runs = [measured("stock"), measured("default", moved=MIB, managed=5, seconds=0.5)]
    (rows, summaries), notes = verdicts.tables(Outcome(runs))
    assert [row[-1] for row in rows] == ["verdict", "-", "ok"]
    moved = dict(zip(summaries[0], summaries[1], strict=True))
    assert (moved["geomean x"], moved["verdict"]) == ("0.01", "met")
    assert summaries[0].count("bar") == 2
    assert not any("Frisky" in note for note in notes)
    runs.append(measured(FRISKY, seconds=2.0, managed=None))
    (*_, peers), notes = verdicts.tables(Outcome(runs))
    assert {row[0] for row in peers[1:]} == {"stock", "default"}
    assert any("Frisky" in note for note in notes)
    saved = json.loads(json.dumps(verdicts.to_json(Outcome(runs))))
    assert {s["policy"] for s in saved["against_frisky"]} == {"stock", "default"}
    assert {s["policy"] for s in saved["summaries"]} == {"default", FRISKY}
    assert saved["rows"][1]["misses"] == []
