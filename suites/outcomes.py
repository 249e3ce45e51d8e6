"""pytest plugin: writes each test's outcome to a file as soon as it is known.

Loaded by ``pytest -p suites.outcomes`` with ``SUITES_OUTCOMES=FILE``. A line of JSON when a test
starts and one when it ends, so that what a killed process has done is known.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

_outcomes: dict[str, tuple[str, str]] = {}


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr or "")
    return next((line for line in text.splitlines() if line.strip()), "")[:300]


def _write(test: str, outcome: str, reason: str = "") -> None:
    record = {"test": test, "outcome": outcome, "reason": reason}
    with Path(os.environ["SUITES_OUTCOMES"]).open("a") as file:
        file.write(json.dumps(record) + "\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    """Say which test is killed if the process is."""
    _write(nodeid, "failed", "killed while it ran")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember the worst of set-up, call and tear-down; write it after the tear-down."""
    if report.failed:
        _outcomes[report.nodeid] = "failed", _reason(report)
    elif report.when == "call" or report.skipped:
        xfailed = "xfailed" if hasattr(report, "wasxfail") else "skipped"
        outcome = "passed" if report.passed else xfailed
        _outcomes.setdefault(report.nodeid, (outcome, ""))
    if report.when == "teardown":
        _write(report.nodeid, *_outcomes.pop(report.nodeid, ("passed", "")))
