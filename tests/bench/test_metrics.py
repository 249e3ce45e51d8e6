"""Aggregation: medians, ratios of the same repetition, geometric means, digests."""

import math

import numpy as np
import pandas as pd
import pytest

from dask_marsched.bench.metrics import (
    Measurement,
    aggregate,
    digest,
    geometric_mean,
    median,
    ratio,
    summarise,
)

MIB = 2**20


def measured(policy, repetition, seconds=1.0, moved=100 * MIB, managed=50, workload="w", **more):
    more = {"pss": 1000, "sent": 10, "digest": "same", **more}
    return Measurement(
        workload, policy, repetition, seconds=seconds, moved=moved, managed=managed, **more
    )


def row_of(rows, policy, workload="w"):
    (row,) = [row for row in rows if (row.policy, row.workload) == (policy, workload)]
    return row


def test_ratio_is_the_median_of_ratios_within_repetitions_not_the_ratio_of_medians():
    stock = [measured("stock", i, seconds) for i, seconds in enumerate([1.0, 10.0, 100.0])]
    plugin = [measured("default", i, seconds) for i, seconds in enumerate([3.0, 20.0, 10.0])]
    row = row_of(aggregate(stock + plugin), "default")
    assert row.medians["seconds"] == 10.0
    assert row.ratios["seconds"] == 2.0


def test_stock_relates_to_itself():
    assert row_of(aggregate([measured("stock", 0)]), "stock").ratios["moved"] == 1.0


def test_failed_run_is_counted_and_does_not_enter_the_medians():
    failed = Measurement("w", "default", 1, error="KilledWorker")
    runs = [measured("stock", 0), measured("stock", 1), measured("default", 0, seconds=0.5), failed]
    row = row_of(aggregate(runs), "default")
    assert (row.runs, row.failed, row.errors) == (2, 1, ("KilledWorker",))
    assert row.medians["seconds"] == 0.5
    assert row.ratios["seconds"] == 0.5


def test_results_are_compared_with_stock_of_the_same_repetition():
    runs = [
        measured("stock", 0, digest="a"),
        measured("stock", 1, digest="b"),
        measured("default", 0, digest="a"),
        measured("default", 1, digest="b"),
        measured("dfs", 0, digest="a"),
        measured("dfs", 1, digest="a"),
    ]
    rows = aggregate(runs)
    assert row_of(rows, "default").identical is True
    assert row_of(rows, "dfs").identical is False


def test_only_workloads_that_move_more_than_5_mib_under_stock_enter_the_means():
    runs = [
        measured("stock", 0, workload="moves", moved=6 * MIB),
        measured("default", 0, workload="moves", moved=3 * MIB),
        measured("stock", 0, workload="stays", moved=5 * MIB),
        measured("default", 0, workload="stays", moved=50 * MIB),
    ]
    rows = aggregate(runs)
    summary = summarise(rows)[0]
    assert (summary.axis, summary.workloads, summary.worst_workload) == ("moved", 1, "moves")
    assert summary.mean == pytest.approx(0.5)
    assert not row_of(rows, "default", "stays").moves


def test_ratios_can_relate_to_another_policy():
    runs = [
        measured("stock", 0, seconds=1.0),
        measured("default", 0, seconds=0.5),
        measured("other", 0, seconds=2.0, managed=None),
    ]
    row = row_of(aggregate(runs, base="other"), "default")
    assert row.ratios["seconds"] == 0.25
    assert row.ratios["managed"] is None
    assert row.moves


def test_geometric_mean_does_not_let_one_ratio_of_nothing_decide():
    assert geometric_mean([0.0, 1.0]) == pytest.approx(0.1)
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([]) is None


def test_what_is_unknown_stays_unknown():
    assert ratio(None, 1.0) is None
    assert ratio(1.0, 0) is None
    assert median([None, 3.0, 1.0]) == 2.0
    assert median([None]) is None


class TestDigest:
    def test_equal_results(self):
        assert digest([np.arange(3.0), 1]) == digest([np.arange(3.0), 1])

    @pytest.mark.parametrize(
        "other",
        [
            np.array([1.0, np.nan]) * -1,
            np.array([1.0, np.nan], dtype="f4"),
            np.array([[1.0, np.nan]]),
            np.array([1.0, np.nextafter(math.inf, 0)]),
        ],
    )
    def test_any_bit_dtype_or_shape_matters(self, other):
        assert digest([np.array([1.0, np.nan])]) != digest([other])

    def test_payload_of_nan_and_sign_of_zero_matter(self):
        quiet = np.array([0x7FF8000000000000], dtype="u8").view("f8")
        payload = np.array([0x7FF8000000000001], dtype="u8").view("f8")
        assert digest([quiet]) == digest([quiet.copy()])
        assert digest([quiet]) != digest([payload])
        assert digest([np.array([0.0])]) != digest([np.array([-0.0])])

    def test_memory_layout_does_not_matter(self):
        array = np.arange(6.0).reshape(2, 3)
        assert digest([array]) == digest([np.asfortranarray(array)])

    def test_index_of_a_series_matters(self):
        assert digest([pd.Series([1, 2])]) != digest([pd.Series([1, 2], index=[1, 0])])
        assert digest([pd.Series([1, 2])]) == digest([pd.Series([1, 2])])
