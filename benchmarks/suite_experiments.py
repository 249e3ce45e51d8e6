"""Runs TPC-H, the public suite or whole programs under each policy, and shows their outcome."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import suite_tables
from benchmarks.findings import ROUNDING, ComparingCluster, Findings
from benchmarks.options import Options
from benchmarks.programs import runner as programs
from benchmarks.public import runner as public_suite
from benchmarks.publishing import exit_if, publish
from benchmarks.tpch import queries
from benchmarks.verdicts import Bar
from dask_marsched.bench import report, runner
from dask_marsched.bench.cluster import Setting
from dask_marsched.bench.command import policy_columns, show_progress
from dask_marsched.bench.metrics import STOCK, Measurement, Row
from dask_marsched.bench.workloads import Workload


def run_tpch(options: Options) -> None:
    """Run the queries of TPC-H; a run that failed, gave another result or raised is wrong."""
    assert options.tpch is not None
    chosen = queries.select(options.tpch, options.names)
    setting = queries.setting(options.workers, options.threads, options.timeout)
    findings = Findings(ROUNDING)
    measured = _measure(options, chosen, setting, queries.QueryCluster, findings)
    rows = _publish(options, measured, queries.BARS, *findings.notes(), queries.NOTE)
    exit_if(findings.faulty or any(row.failed or row.identical is False for row in rows))


def run_programs(options: Options) -> None:
    """Run whole programs; one that failed under ours, gave another result or raised is wrong."""
    chosen = programs.select(options.names)
    findings = Findings()
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        setting = programs.setting(options.workers, options.threads, options.timeout, Path(scratch))
        measured = _measure(options, chosen, setting, programs.ProgramCluster, findings)
    rows = _publish(options, measured, programs.BARS, *findings.notes(), programs.NOTE)
    # Stock Dask does not always forget the tasks of a program that names some alike.
    failed = any(row.failed for row in rows if row.policy != STOCK)
    exit_if(findings.faulty or failed or any(row.identical is False for row in rows))


def run_public(options: Options) -> None:
    """Run tests of the public suite under each policy; one that failed under ours is wrong."""
    assert options.public is not None
    suite, columns = options.public, policy_columns(options.policies)
    tests = public_suite.tests_of(suite, options.names)
    measured = _until_interrupted(
        lambda show: public_suite.run(suite, tests, columns, options.repeat, options.timeout, show)
    )
    rows = _publish(options, measured, public_suite.BARS, suite_tables.NOTE)
    exit_if(any(row.failed for row in rows if row.policy != STOCK))


def _measure(
    options: Options,
    chosen: tuple[Workload, ...],
    setting: Setting,
    cluster: type[ComparingCluster],
    findings: Findings,
) -> list[Measurement]:
    """Measure workloads under each policy on clusters that tell their findings."""
    columns = policy_columns(options.policies)
    openers: dict[str, runner.Opener] = dict.fromkeys(columns, functools.partial(cluster, findings))
    return _until_interrupted(
        lambda show: runner.run(chosen, columns, options.repeat, setting, show, openers)
    )


def _publish(
    options: Options, measured: Sequence[Measurement], bars: Mapping[str, Bar], *notes: str
) -> list[Row]:
    """Publish the tables of what was measured, failures and notes; return the rows."""
    rows = suite_tables.rows_of(measured)
    found = {"measurements": list(map(asdict, measured))}
    publish(options, suite_tables.tables(rows, bars), found, report.failures(rows), *notes)
    return rows


def _until_interrupted(run: Callable[[Callable[[Measurement], None]], object]) -> list[Measurement]:
    """Return what a run tells to its argument, up to its end or an interrupt."""
    measured: list[Measurement] = []

    def show(measurement: Measurement) -> None:
        measured.append(measurement)
        show_progress(measurement)

    with contextlib.suppress(KeyboardInterrupt):
        run(show)
    return measured
