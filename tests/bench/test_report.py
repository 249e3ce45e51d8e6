"""Tables, for the terminal and for the docs, and the JSON."""

import json

from benchmarks.scheduler import planning
from dask_marsched.bench import report
from dask_marsched.bench.metrics import FRISKY, Measurement, aggregate
from dask_marsched.bench.runner import Outcome

MIB = 2**20


def outcome():
    stock = Measurement("sum", "stock", 0, 2.0, 200 * MIB, 10 * MIB, 50 * MIB, 7, "a", 4.0)
    plugin = Measurement("sum", "default", 0, 1.0, 20 * MIB, 5 * MIB, 50 * MIB, 7, "a", 3.0)
    frisky = Measurement("sum", FRISKY, 0, 4.0, 40 * MIB, None, 25 * MIB, None, "a")
    failed = Measurement("svd", "default", 0, error="RunFailed: a worker died")
    return Outcome([stock, plugin, frisky, failed], [{"policy": "default", "repetition": 0}])


def both(found):
    return aggregate(found.measurements), aggregate(found.measurements, base=FRISKY)


def test_row_shows_medians_ratios_and_verdict():
    rows, _ = both(outcome())
    head, stock, plugin, frisky, failed = report.row_cells(rows)
    assert head[:4] == ["workload", "policy", "moved MiB", "x"]
    assert stock[:4] == ["sum", "stock", "200", "1.00"]
    assert plugin == ["sum", "default", "20.0", "0.10", "5.0", "0.50", "50.0", "1.00",
                      "1.00", "0.50", "3.00", "0.75", "7", "1.00", "yes", "ok"]  # fmt: skip
    assert frisky[4:6] == ["-", "-"]
    assert failed[-1] == "above: failed"


def test_summary_shows_the_bars():
    rows, _ = both(outcome())
    cells = report.summary_cells(report.all_summaries(rows))
    moved = dict(zip(cells[0], cells[1], strict=True))
    assert moved["policy"] == "default"
    assert moved["geomean x"] == "0.10"
    assert moved["verdict"] == "met"


def test_failure_is_told_with_its_reason():
    rows, peers = both(outcome())
    text = report.render(rows, peers, report.text_table)
    assert "svd under default: 1 of 1 failed: RunFailed: a worker died" in text


def test_frisky_is_told_of_only_if_it_ran():
    found = outcome()
    assert "Ratios to Frisky" in report.render(*both(found), report.text_table)
    found.measurements = [m for m in found.measurements if m.policy != FRISKY]
    assert "Frisky" not in report.render(*both(found), report.text_table)


def test_text_columns_line_up():
    lines = report.text_table([["workload", "x"], ["a", "1.00"], ["long name", "10.00"]])
    assert lines.splitlines() == [
        "workload       x",
        "---------  -----",
        "a           1.00",
        "long name  10.00",
    ]


def test_markdown_has_one_line_a_row_and_says_what_made_it():
    rows, peers = both(outcome())
    page = report.markdown_page(rows, peers, "dask marsched bench --repeat 1")
    assert page.startswith("Made by `dask marsched bench --repeat 1` on ")
    assert "| workload | policy | moved MiB | x |" in page
    assert "| :-- | :-- | --: | --: |" in page


def test_json_holds_everything():
    found = outcome()
    saved = json.loads(json.dumps(report.to_json(found, *both(found), "command")))
    assert len(saved["measurements"]) == 4
    assert saved["measurements"][3]["error"] == "RunFailed: a worker died"
    assert {s["policy"] for s in saved["summaries"]} == {"default", FRISKY}
    assert {s["policy"] for s in saved["against_frisky"]} == {"stock", "default"}
    assert saved["plugin_reports"] == found.reports
    assert saved["versions"]["dask"]


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
