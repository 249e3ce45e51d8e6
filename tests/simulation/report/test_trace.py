import json
from itertools import pairwise

import dask.array as da
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_marsched.simulation import simulate
from dask_marsched.simulation.cluster.recorder import Recorder
from tests.recorded_reports import FACTS, small_report, wide_report

REQUIRED = {
    "M": {"name", "ph", "pid", "tid", "args"},
    "X": {"name", "ph", "ts", "dur", "pid", "tid", "args"},
    "C": {"name", "ph", "ts", "pid", "tid", "args"},
    "i": {"name", "ph", "ts", "pid", "tid", "s"},
}


def load(report, path):
    report.to_chrome_trace(path)
    found = json.loads(path.read_text())
    assert set(found) == {"displayTimeUnit", "otherData", "traceEvents"}
    check(found["traceEvents"])
    return found["traceEvents"]


def check(events):
    """Check what a viewer relies on."""
    named = {(event["name"], event["pid"], event["tid"]) for event in events if event["ph"] == "M"}
    lanes = {}
    for event in events:
        assert set(event) == REQUIRED[event["ph"]]
        assert type(event["pid"]) is type(event["tid"]) is int
        assert ("process_name", event["pid"], 0) in named
        if event["ph"] != "M":
            assert type(event["ts"]) is int
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert type(event["dur"]) is int
            assert event["dur"] >= 0
            assert ("thread_name", event["pid"], event["tid"]) in named
            lane = lanes.setdefault((event["pid"], event["tid"]), [])
            lane.append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "C":
            assert all(type(value) is int for value in event["args"].values())
    for slices in lanes.values():
        slices.sort()
        for (_, stop), (start, _) in pairwise(slices):
            assert stop <= start


def of(events, phase):
    return [event for event in events if event["ph"] == phase]


def test_all_that_happened_is_in_the_trace(tmp_path):
    events = load(small_report(), tmp_path / "trace.json")
    names = [event["args"]["name"] for event in of(events, "M") if event["name"] == "process_name"]
    assert names == ["cluster", "worker 0", "worker 1", "worker 2"]
    slices = {(event["name"], event["pid"], event["ts"]): event for event in of(events, "X")}
    again = slices["load", 3, 5_000_000]
    assert again["dur"] == 1_000_000
    assert again["args"] == {"key": "('load-1', 0)", "recomputed": True}
    first, overlapping = slices["load", 2, 0], slices["sum", 2, 250_000]
    assert "recomputed" not in first["args"]
    assert first["tid"] != overlapping["tid"]
    assert slices["from 0", 3, 2_000_000]["args"] == {
        "from": 0, "results": 1, "bytes": 60, "between hosts": True,
    }  # fmt: skip
    assert slices["paused", 3, 4_000_000]["dur"] == 500_000
    instants = {(event["name"], event["ts"]) for event in of(events, "i")}
    assert instants == {("kill worker 0", 4_500_000), ("join worker 2", 5_000_000)}
    totals = [event["args"]["bytes"] for event in of(events, "C") if event["pid"] == 1]
    assert totals == [60, 110, 140, 200, 140, 110, 60]


def test_a_simulation_fits_into_as_many_lanes_as_threads(tmp_path):
    x = da.random.default_rng(0).random((400, 400), chunks=50)
    report = simulate((x + x.T).sum(), policy="stock", workers=2, threads=3, isolated=False, seed=1)
    events = load(report, tmp_path / "trace.json")
    slices = [event for event in of(events, "X") if event["tid"] < 10_001]
    assert len(slices) == len(report.timeline.tasks)
    assert {event["tid"] for event in slices} == {1, 2, 3}
    received = sum(event["args"]["bytes"] for event in of(events, "X") if event["tid"] > 10_000)
    assert received == report.bytes_moved


def test_counters_are_thinned_but_keep_the_peak(tmp_path):
    report = wide_report(2, 3000)
    totals = [
        event["args"]["bytes"]
        for event in of(load(report, tmp_path / "trace.json"), "C")
        if event["pid"] == 1
    ]
    assert len(totals) == 1000
    assert max(totals) == report.peak_memory


intervals = st.tuples(st.floats(0, 1e-4), st.floats(0, 1e-4)).map(sorted)


@pytest.mark.extended
@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), intervals), min_size=1, max_size=30))
def test_lanes_never_overlap(tmp_path_factory, executions):
    recorder = Recorder(0.0, True)
    for worker in (0, 1):
        recorder.joined(worker)
    for number, (worker, (start, stop)) in enumerate(executions):
        recorder.executed(f"x-{number}", worker, start, stop)
        recorder.transferred((1 - worker, worker), True, 1, 8, start, stop)
    report = recorder.report(cluster={"seed": 0}, tasks=1, end=1.0, thread_seconds=1.0, **FACTS)
    events = load(report, tmp_path_factory.mktemp("lanes") / "trace.json")
    assert len(of(events, "X")) == 2 * len(executions)


def test_a_directory_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        small_report().to_chrome_trace(tmp_path / "missing" / "trace.json")
