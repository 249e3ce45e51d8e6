import json
import pickle
import sys
from collections import Counter
from html.parser import HTMLParser

import dask.array as da
import pytest

from dask_marsched.simulation import simulate
from dask_marsched.simulation.cluster.recorder import Recorder
from dask_marsched.simulation.report.timeline import PeakGroup
from tests.recorded_reports import FACTS, small_report, wide_report

KEYS = {
    "policy", "cluster", "tasks", "makespan", "bytes_moved", "transfers", "keys_moved",
    "bytes_between_hosts", "peak_memory", "peak_memory_per_worker", "peak_managed", "bytes_spilled",
    "seconds_paused", "tasks_recomputed", "utilisation", "cost_sources",
    "not_simulated", "plugin", "peak_groups",
}  # fmt: skip


@pytest.fixture(scope="module")
def simulated():
    x = da.random.default_rng(0).random((400, 400), chunks=100)
    return simulate(((x - x.mean(0)) ** 2).sum(), policy="stock", workers=3, isolated=False)


def test_what_was_told_is_reported():
    report = small_report()
    assert report.makespan == 8.0
    assert (report.bytes_moved, report.transfers, report.keys_moved) == (100, 2, 3)
    assert report.bytes_between_hosts == 60
    assert report.peak_memory == 200
    assert report.peak_memory_per_worker == {0: 90, 1: 110, 2: 0}
    assert report.bytes_spilled == 60
    assert report.seconds_paused == 0.5
    assert report.tasks_recomputed == 1
    assert report.utilisation == (1 + 1.5 + 1.75 + 1) / 32
    assert (report.workers, report.threads, report.memory_limit, report.seed) == (2, 2, 120, 7)
    assert report.not_simulated == ("actors <3>",)


def test_the_timeline_reads_like_lists_of_tuples():
    timeline = small_report().timeline
    assert timeline.tasks[1] == (("load-1", 1), 1, 0.5, 2.0)
    assert timeline.tasks[-1] == (("load-1", 0), 1, 5.0, 6.0)
    assert [key for key, *_ in timeline.tasks[1:3]] == [("load-1", 1), ("sum-2", 0)]
    assert list(timeline.transfers) == [
        (0, 1, 1, 60, 2.0, 3.0, True),
        (0, 1, 2, 40, 2.5, 3.5, False),
    ]
    assert list(timeline.memory)[:4] == [(1.0, 60), (2.0, 110), (2.0, 140), (3.0, 200)]
    assert list(timeline.spills) == [(4.0, 0, 60), (4.25, 0, -60)]
    assert list(timeline.pauses) == [(1, 4.0, 4.5)]
    assert timeline.faults == [(4.5, "kill", 0), (5.0, "join", 2)]
    assert timeline.tasks == small_report().timeline.tasks
    assert timeline.tasks != timeline.tasks[1:]


def test_a_report_survives_pickling():
    report = small_report()
    assert pickle.loads(pickle.dumps(report)) == report
    assert small_report(end=1009.0) != report


def test_a_timeline_is_compact():
    timeline = wide_report(50, 40).timeline
    assert timeline.tasks.rows.nbytes == 2000 * 24
    assert timeline.changes.rows.nbytes == 2000 * 24


def test_the_groups_that_make_up_the_peak():
    report = small_report()
    assert report.peak_groups() == [
        PeakGroup("load", 170, 3, 0.85),
        PeakGroup("sum", 30, 1, 0.15),
    ]
    assert report.peak_groups(n=1) == [PeakGroup("load", 170, 3, 0.85)]
    assert report.peak_groups(worker=0) == [
        PeakGroup("load", 60, 1, 60 / 90),
        PeakGroup("sum", 30, 1, 30 / 90),
    ]
    assert report.peak_groups(worker=2) == []
    with pytest.raises(ValueError, match="worker must be a number from 0 to 2, not 3"):
        report.peak_groups(worker=3)


def test_peaks_of_a_simulation_add_up(simulated):
    assert sum(group.nbytes for group in simulated.peak_groups(n=99)) == simulated.peak_memory
    for worker, peak in simulated.peak_memory_per_worker.items():
        assert sum(group.nbytes for group in simulated.peak_groups(99, worker)) == peak
    memory = list(simulated.timeline.memory)
    assert max(held for _, held in memory) == simulated.peak_memory


def test_no_worker_drops_what_it_does_not_hold():
    x = da.random.default_rng(0).random((400, 400), chunks=50)
    faults = [(0.02, "kill", 1), (0.04, "join", 1)]
    report = simulate((x + x.T).sum(), policy="stock", workers=2, faults=faults, isolated=False)
    assert report.tasks_recomputed > 0
    assert [fault[1:] for fault in report.timeline.faults] == [("kill", 1), ("join", 1)]
    held = Counter()
    for _, worker, key, change in report.timeline.changes:
        held[worker, key] += change
        assert held[worker, key] >= 0


def test_without_a_timeline_the_numbers_are_the_same():
    whole, bare = small_report(), small_report(timeline=False)
    shown = bare.to_dict()
    assert shown == whole.to_dict() | {"peak_groups": []}
    assert "held at the peak" not in bare._repr_html_()
    for method in (bare.peak_groups, bare.to_frame, bare.plot):
        with pytest.raises(ValueError, match=r"needs the timeline: simulate\(\.\.\., timeline="):
            method()
    with pytest.raises(ValueError, match="needs the timeline"):
        bare.to_dict(timeline=True)


def test_json_has_the_documented_keys(simulated):
    for report in (small_report(), simulated):
        shown = report.to_dict()
        assert set(shown) == KEYS
        assert json.loads(report.to_json()) == shown
    assert small_report().to_dict()["peak_memory_per_worker"] == {"0": 90, "1": 110, "2": 0}


def test_json_with_the_timeline():
    found = json.loads(small_report().to_json(timeline=True))["timeline"]
    assert found["tasks"]["key"][0] == "('load-1', 0)"
    assert found["tasks"]["stop"] == [1.0, 2.0, 2.0, 6.0]
    assert found["transfers"]["between_hosts"] == [True, False]
    assert found["changes"]["bytes"] == [60, 50, 30, 60, -60, -30, -50]
    assert found["faults"][0] == [4.5, "kill", 0]


def test_frames():
    report = small_report()
    tasks = report.to_frame()
    assert list(tasks.columns) == ["key", "group", "worker", "start", "stop"]
    assert list(tasks.group) == ["load", "load", "sum", "load"]
    assert tasks.key[2] == ("sum-2", 0)
    assert list(report.to_frame("transfers").bytes) == [60, 40]
    memory = report.to_frame("memory")
    assert memory.cluster_bytes.max() == 200
    assert dict(memory.groupby("worker").worker_bytes.max()) == {0: 90, 1: 110}
    with pytest.raises(ValueError, match="one of 'tasks', 'transfers', 'memory', not 'disk'"):
        report.to_frame("disk")


@pytest.mark.parametrize(
    ("module", "method"), [("pandas", "to_frame"), ("matplotlib.figure", "plot")]
)
def test_a_missing_package_is_named_with_its_extra(monkeypatch, module, method):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[simulate\]'"):
        getattr(small_report(), method)()


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_notebook_page_is_self_contained_and_takes_the_theme_of_the_page():
    page = _Page()
    page.feed(small_report()._repr_html_())
    assert page.open == []
    assert "script" not in page.tags
    assert "svg" in page.tags
    assert not {"src", "href", "color", "bgcolor"} & {name for name, _ in page.attributes}
    assert not any("color" in (value or "") for name, value in page.attributes if name == "style")
    text = " ".join(page.text)
    for part in ("load (3, 170 B)", "kill 0 at 4.5 s", "92%", "actors <3>"):
        assert part in text


def test_a_worker_that_comes_back_keeps_its_higher_peak():
    recorder = Recorder(0.0, True)
    for change in (50, -50, 20):
        recorder.joined(0)
        recorder.memory_changed(1.0, 0, "x", change)
    report = recorder.report(cluster={}, tasks=1, end=1.0, thread_seconds=0.0, **FACTS)
    assert report.peak_memory_per_worker == {0: 50}
    assert report.utilisation == 0.0
