"""``dask marsched bench``: named workloads under stock Dask and this package's policies."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from dask.utils import parse_bytes

from dask_marsched.bench import report, runner, workloads
from dask_marsched.bench.cluster import DEFAULT, Setting, policy_plugin
from dask_marsched.bench.metrics import STOCK, Measurement, Row, aggregate, summarise
from dask_marsched.bench.workloads import GENERAL, Kind, Parameters, Workload

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--select", default="", help="Names of workloads, separated by commas."),
    click.option(
        "--policy",
        "policies",
        multiple=True,
        help="stock, default, or the name of an assignment. Append +off, +chains or +subgraphs for "
        "how tasks are joined, +nokernels, +noquota, +unshared or +uninterrupted to switch parts "
        "off. May be given several times. [default: stock and default]",
    ),
    click.option("--repeat", default=3, show_default=True, type=click.IntRange(min=1)),
    click.option("--workers", default=4, show_default=True, type=click.IntRange(min=1)),
    click.option("--threads", default=1, show_default=True, type=click.IntRange(min=1)),
    click.option("--size", default=1.0, show_default=True, help="Factor on the number of chunks."),
    click.option("--chunk", default="8 MiB", show_default=True, help="Size of the typical chunk."),
    click.option("--timeout", default=300.0, show_default=True, help="Seconds for one run."),
    click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path)),
    click.option(
        "--list",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=lambda context, parameter, value: _list_and_end(context) if value else None,
        help="List the workloads and end.",
    ),
)


def workload_options(command: F) -> F:
    """Decorate a command with the options that select workloads and say how they run."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command("bench")
@workload_options
def bench(
    select: str,
    policies: tuple[str, ...],
    repeat: int,
    workers: int,
    threads: int,
    size: float,
    chunk: str,
    timeout: float,
    json_path: Path | None,
) -> None:
    """Measure named workloads under stock Dask and under this package's policies.

    The exit code is 1 if a run failed or results differ.
    """
    columns = policy_columns(policies)
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        selected, parameters = prepare(select, GENERAL, size, chunk, Path(scratch))
        setting = Setting(workers, threads, parameters, timeout)
        outcome = runner.run(selected, columns, repeat, setting, show_progress)
    rows = aggregate(outcome.measurements)
    tables = [report.row_cells(rows), report.summary_cells(summarise(rows))]
    texts = [report.text_table(table) for table in tables if len(table) > 1]
    click.echo("\n\n".join([*texts, *filter(None, [report.failures(rows)]), report.NOTE]))
    if json_path:
        command = f"dask marsched bench {shlex.join(sys.argv[3:])}".strip()
        content = {**report.facts(command), **report.to_json(outcome, rows)}
        json_path.write_text(json.dumps(content, indent=1) + "\n")
    exit_by(rows)


def policy_columns(policies: Sequence[str]) -> tuple[str, ...]:
    """Return a column name for each policy, also if one is given twice; UsageError if unknown."""
    seen: dict[str, int] = {}
    columns = []
    for policy in policies or (STOCK, DEFAULT):
        try:
            policy_plugin(policy)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        seen[policy] = seen.get(policy, 0) + 1
        columns.append(policy if seen[policy] == 1 else f"{policy}#{seen[policy]}")
    return tuple(columns)


def prepare(
    select: str, kinds: Sequence[Kind], size: float, chunk: str, scratch: Path
) -> tuple[tuple[Workload, ...], Parameters]:
    """Return the named workloads, else those of some kinds, and their size; UsageError if bad."""
    names = [name.strip() for name in select.split(",") if name.strip()]
    try:
        return workloads.select(names, kinds), Parameters(size, parse_bytes(chunk), scratch)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def show_progress(measurement: Measurement) -> None:
    """Print one finished run."""
    m = measurement
    if m.error:
        outcome = f"FAILED: {m.error}"
    else:
        moved = "-" if m.moved is None else f"{m.moved / report.MIB:.1f} MiB moved"
        outcome = f"{m.seconds:.2f} s, {moved}"
    click.echo(f"  {m.repetition + 1}  {m.workload:<22}{m.policy:<12}{outcome}", err=True)


def exit_by(rows: Sequence[Row]) -> None:
    """Exit with 1 if a run failed or results differ from stock's."""
    if any(row.failed or row.identical is False for row in rows):
        raise SystemExit(1)


def _list_and_end(context: click.Context) -> None:
    for name in workloads.names(Kind):
        workload = workloads.get(name)
        mark = "" if workload.kind in GENERAL else f" [{workload.kind.value}]"
        click.echo(f"{name:<22}{workload.summary}{mark}")
    context.exit()
