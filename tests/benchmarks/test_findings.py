"""The comparison of results, and the exceptions of the plugin."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.findings import ROUNDING, Findings, caught, difference
from dask_marsched.status import Status

FRAME = pd.DataFrame({"k": ["a", "b", "c"], "v": [1.0, 2.0, float("nan")]})


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (FRAME, 0.0),
        (FRAME[::-1], 0.0),
        (FRAME.assign(v=[1.0, 2.5, float("nan")]), 0.2),
        (FRAME.assign(v=[1.0, 2.0, 3.0]), float("inf")),
        (FRAME.assign(k=["a", "b", "d"]), float("inf")),
        (FRAME[:2], float("inf")),
        (FRAME.rename(columns={"k": "x"}), float("inf")),
    ],
)
def test_frames_differ_by_their_numbers_or_at_all(other, expected):
    assert difference(FRAME, other) == pytest.approx(expected)


COUNTS = pd.Series([3, 5], index=pd.Index(["a", "b"], name="word"), name="count")


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (2, 2, 0.0),
        (2, 3, float("inf")),
        (2.0, 2.5, 0.2),
        (np.array([1.0, np.nan]), np.array([1.0, np.nan]), 0.0),
        (np.array([1.0, np.nan]), np.array([1.0, 2.0]), float("inf")),
        (np.ones(2), np.ones(3), float("inf")),
        ([("a", 1), ("b", 2)], [("a", 1), ("b", 2)], 0.0),
        ([("a", 1), ("b", 2)], [("a", 1), ("c", 2)], float("inf")),
        ((1.0, 4.0), (1.0, 5.0), 0.2),
        ((1.0, 2.0), (1.0,), float("inf")),
        (COUNTS, COUNTS[::-1], 0.0),
        (COUNTS, COUNTS.rename({"a": "c"}), float("inf")),
        (COUNTS * 1.0, COUNTS * 1.25, 0.2),
    ],
)
def test_other_results_differ_likewise(one, other, expected):
    assert difference(one, other) == pytest.approx(expected)


def test_rounding_is_no_difference_but_is_told():
    findings = Findings(ROUNDING)
    assert findings.compare("q01", FRAME)
    assert findings.compare("q01", FRAME.assign(v=[1.0 + 1e-12, 2.0, float("nan")]))
    assert not findings.compare("q01", FRAME.assign(v=[1.1, 2.0, float("nan")]))
    assert list(findings.notes()) == ["Largest relative difference: 9.1e-02 in q01."]


def test_rounding_is_a_difference_unless_allowed():
    findings = Findings()
    assert findings.compare("mean", 1.0)
    assert findings.compare("mean", 1.0)
    assert not findings.compare("mean", 1.0 + 1e-12)


def test_exceptions_of_scheduler_and_workers_count():
    workers = {"a": {"runs": {"exceptions": {"fetch": 2}}, "quota": None, "reasons": {"x": "y"}}}
    state = Status("tcp://s", True, None, exceptions={"place": 1}, workers=workers)
    assert caught(state) == {"place": 1, "fetch": 2}
