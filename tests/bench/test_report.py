"""Tables for the terminal and for the docs, and the JSON."""

import json

import pytest

from benchmarks import publishing
from dask_marsched.bench import command, report
from dask_marsched.bench.metrics import Measurement, aggregate, summarise
from dask_marsched.bench.runner import Outcome

MIB = 2**20


@pytest.fixture
def outcome():
    stock = Measurement("sum", "stock", 0, 2.0, 200 * MIB, 10 * MIB, 50 * MIB, 7, "a", 4.0, 2.0)
    plugin = Measurement("sum", "default", 0, 1.0, 20 * MIB, 5 * MIB, 50 * MIB, 7, "a", 3.0, 0.5)
    failed = Measurement("svd", "default", 0, error="RunFailed: a worker died")
    return Outcome([stock, plugin, failed], [{"policy": "default", "repetition": 0}])


@pytest.fixture
def rows(outcome):
    return aggregate(outcome.measurements)


def test_row_shows_medians_and_ratios(rows):
    head, stock, plugin, failed = report.row_cells(rows)
    assert head[:4] == ["workload", "policy", "moved MiB", "x"]
    assert stock[:4] == ["sum", "stock", "200", "1.00"]
    assert plugin == ["sum", "default", "20.0", "0.10", "5.0", "0.50", "50.0", "1.00", "1.00",
                      "0.50", "3.00", "0.75", "0.50", "0.25", "7", "1.00", "yes"]  # fmt: skip
    assert failed[4:6] == ["-", "-"]


def test_summary_shows_the_geometric_mean(rows):
    head, moved, *_ = report.summary_cells(summarise(rows))
    found = dict(zip(head, moved, strict=True))
    assert (found["policy"], found["axis"], found["geomean x"]) == ("default", "moved", "0.10")


def test_failure_is_shown_with_its_reason(rows):
    assert report.failures(rows) == ("- svd under default: 1 of 1 failed: RunFailed: a worker died")


def test_a_failed_run_or_a_different_result_ends_with_an_error(rows):
    command.exit_by(rows[:2])
    with pytest.raises(SystemExit):
        command.exit_by(rows)


def test_text_columns_line_up():
    lines = report.text_table([["workload", "x"], ["a", "1.00"], ["long name", "10.00"]])
    assert lines.splitlines() == [
        "workload       x",
        "---------  -----",
        "a           1.00",
        "long name  10.00",
    ]


def test_markdown_has_one_line_a_row(rows):
    lines = publishing.markdown_table(report.row_cells(rows)).splitlines()
    assert len(lines) == 2 + len(rows)
    assert lines[0].startswith("| workload | policy | moved MiB | x |")
    assert lines[1].startswith("| :-- | :-- | --: | --: |")


def test_a_sentence_says_what_made_a_table():
    made = publishing.made_by("dask marsched bench --repeat 1")
    assert made.startswith("Made by `dask marsched bench --repeat 1` on ")
    assert "distributed 20" in made


def test_json_holds_everything(outcome, rows):
    saved = json.loads(json.dumps(report.to_json(outcome, rows)))
    assert len(saved["measurements"]) == 3
    assert saved["measurements"][2]["error"] == "RunFailed: a worker died"
    assert {s["policy"] for s in saved["summaries"]} == {"default"}
    assert saved["plugin_reports"] == outcome.reports
