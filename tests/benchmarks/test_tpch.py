"""The queries of TPC-H: their data, and what runs them."""

import datetime
import decimal
import functools

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import suite_tables
from benchmarks.findings import ROUNDING, Findings
from benchmarks.tpch import data, queries
from dask_marsched.bench import runner
from dask_marsched.bench.metrics import Measurement, aggregate

QUERIES = "import dask.dataframe as dd\n" + "\n".join(
    f"""
def query_{i:02}(path, fs, scale):
    rows = dd.read_parquet(path + "supplier", filesystem=fs)
    return rows.groupby("name").price.sum().to_frame("total").reset_index()
"""
    for i in range(1, queries.COUNT + 1)
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / data.QUERIES).write_text(QUERIES)
    (tmp_path / "supplier").mkdir()
    for i in range(2):
        table = pa.table({"name": ["a", "b"] * 50, "price": [float(i)] * 100})
        pq.write_table(table, tmp_path / "supplier" / f"{i}.parquet")
    return tmp_path


def test_dates_and_decimals_become_timestamps_and_floats(tmp_path):
    table = pa.table(
        {
            "d": [datetime.date(1994, 1, 1)],
            "p": pa.array([decimal.Decimal("1.50")], pa.decimal128(15, 2)),
            "s": pa.array(["x"], pa.string_view()),
            "i": [7],
        }
    )
    pq.write_table(table, tmp_path / "raw.parquet")
    data.relax(tmp_path / "raw.parquet", tmp_path / "table" / "1.parquet")
    found = pq.read_table(tmp_path / "table" / "1.parquet")
    kinds = [pa.timestamp("ms"), pa.float64(), pa.string(), pa.int64()]
    assert found.schema.types == kinds
    row = {"d": datetime.datetime(1994, 1, 1), "p": 1.5, "s": "x", "i": 7}
    assert found.to_pylist() == [row]


def test_queries_are_chosen_by_name(folder):
    assert [w.name for w in queries.select(folder)] == [f"q{i:02}" for i in range(1, 23)]
    assert [w.name for w in queries.select(folder, ["q03"])] == ["q03"]
    with pytest.raises(ValueError, match="no queries named q23; accepted: q01, q02"):
        queries.select(folder, ["q01", "q23"])
    with pytest.raises(ValueError, match="make it with"):
        queries.select(folder / "supplier")


def test_the_scale_follows_from_the_number_of_suppliers(folder):
    assert queries.scale(folder) == pytest.approx(0.02)


def test_bars_on_bytes_hold_for_queries_that_move_much():
    def verdict(moved, seconds=1.0):
        runs = [
            Measurement("q01", "stock", 0, seconds=1.0, moved=moved // 2, managed=10, digest="x"),
            Measurement("q01", "default", 0, seconds=seconds, moved=moved, managed=10, digest="x"),
        ]
        return suite_tables.misses(suite_tables.rows_of(runs)[1], queries.BARS)

    assert verdict(2 * 2**20) == []
    assert verdict(200 * 2**20) == ["moved"]
    assert verdict(2 * 2**20, seconds=1.2) == ["seconds"]


@pytest.mark.slow
def test_queries_run_under_each_policy(folder):
    chosen = queries.select(folder, ["q01", "q02"])
    findings = Findings(ROUNDING)
    policies = ("stock", "default")
    openers = dict.fromkeys(policies, functools.partial(queries.QueryCluster, findings))
    found = runner.run(chosen, policies, 1, queries.setting(2, 1, 60.0), openers=openers)
    rows = aggregate(found.measurements)
    assert [(row.workload, row.failed, row.identical) for row in rows] == [
        (name, 0, True) for name in ("q01", "q01", "q02", "q02")
    ]
    assert not findings.faulty
    shown, _means = suite_tables.tables(rows, queries.BARS)
    assert [line[:2] for line in shown[1:]] == [[r.workload, r.policy] for r in rows]
