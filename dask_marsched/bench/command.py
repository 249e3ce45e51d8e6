"""``dask marsched bench``: named workloads under stock Dask and this package's policies."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from dask.utils import parse_bytes

from dask_marsched.bench import report, runner, workloads
from dask_marsched.bench.cluster import DEFAULT, Setting, policy_plugin
from dask_marsched.bench.metrics import FRISKY, STOCK, Measurement, aggregate
from dask_marsched.bench.workloads import Kind, Parameters, Workload

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(kw_only=True)
class Options:
    """Options of the command line that say which workloads run, and how."""

    select: str
    held_out: bool
    policies: tuple[str, ...]
    repeat: int
    workers: int
    threads: int
    size: float
    chunk: str
    timeout: float
    json_path: Path | None
    markdown_path: Path | None


_OPTIONS = (
    click.option("--select", default="", help="Names of workloads, separated by commas."),
    click.option(
        "--held-out", is_flag=True, help="Run the set that never served to tune anything."
    ),
    click.option(
        "--policy",
        "policies",
        multiple=True,
        help="stock, default, or the name of an assignment. Append +off, +chains or +subgraphs for "
        "how tasks are joined, +kernels or +nokernels, +noquota, +shared or +unshared for parts of "
        "the workers. May be given several times. [default: stock and default]",
    ),
    click.option("--repeat", default=3, show_default=True, type=click.IntRange(min=1)),
    click.option("--workers", default=4, show_default=True, type=click.IntRange(min=1)),
    click.option("--threads", default=1, show_default=True, type=click.IntRange(min=1)),
    click.option("--size", default=1.0, show_default=True, help="Factor on the number of chunks."),
    click.option("--chunk", default="8 MiB", show_default=True, help="Size of the typical chunk."),
    click.option("--timeout", default=300.0, show_default=True, help="Seconds for one run."),
    click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path)),
    click.option("--markdown", "markdown_path", type=click.Path(dir_okay=False, path_type=Path)),
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
    """Decorate a command with the options in `Options`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command("bench", help=__doc__)
@workload_options
def bench(**options: Any) -> None:
    """Run the benchmark; exit with 1 if a run failed or results differ."""
    chosen = Options(**options)
    columns = policy_columns(chosen)
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        selected, setting = prepare(chosen, Path(scratch))
        outcome = runner.run(selected, columns, chosen.repeat, setting, show_progress)
    publish(outcome, selected, chosen, command_line("dask", "marsched", "bench"))


def split_names(value: str) -> tuple[str, ...]:
    """Return the names in a list separated by commas."""
    return tuple(name.strip() for name in value.split(",") if name.strip())


def policy_columns(options: Options) -> tuple[str, ...]:
    """Return a name for each policy; one that is given twice makes two columns.

    Raises
    ------
    click.UsageError
        If there is no such policy.
    """
    options.policies = options.policies or (STOCK, DEFAULT)
    seen: dict[str, int] = {}
    columns = []
    for policy in options.policies:
        try:
            policy_plugin(policy)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        seen[policy] = seen.get(policy, 0) + 1
        columns.append(policy if seen[policy] == 1 else f"{policy}#{seen[policy]}")
    return tuple(columns)


def prepare(options: Options, scratch: Path) -> tuple[tuple[Workload, ...], Setting]:
    """Return the selected workloads and the clusters' setting.

    Raises
    ------
    click.UsageError
        If there is no such workload, or a size cannot be read.
    """
    try:
        selected = workloads.select(split_names(options.select), options.held_out)
        parameters = Parameters(options.size, parse_bytes(options.chunk), scratch)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return selected, Setting(options.workers, options.threads, parameters, options.timeout)


def show_progress(measurement: Measurement) -> None:
    """Print one finished run."""
    m = measurement
    if m.error:
        outcome = f"FAILED: {m.error}"
    else:
        moved = "-" if m.moved is None else f"{m.moved / report.MIB:.1f} MiB moved"
        outcome = f"{m.seconds:.2f} s, {moved}"
    click.echo(f"  {m.repetition + 1}  {m.workload:<22}{m.policy:<12}{outcome}", err=True)


def command_line(*program: str) -> str:
    """Return the command line as the user would type it."""
    arguments = sys.argv[1:]
    if "bench" in arguments:
        arguments = arguments[arguments.index("bench") + 1 :]
    return shlex.join([*program, *arguments])


def publish(
    outcome: runner.Outcome, selected: tuple[Workload, ...], options: Options, command: str
) -> None:
    """Show the outcome and write the files that were asked for.

    Raises
    ------
    SystemExit
        With 1, if a run failed or results differ.
    """
    overhead = [w.name for w in selected if w.kind is Kind.OVERHEAD]
    rows = aggregate(outcome.measurements, overhead)
    peers = aggregate(outcome.measurements, overhead, base=FRISKY)
    click.echo(report.render(rows, peers, report.text_table))
    write_json(options, report.to_json(outcome, rows, peers, command))
    if options.markdown_path:
        options.markdown_path.write_text(report.markdown_page(rows, peers, command))
    ours = [row for row in rows if row.policy != FRISKY]
    if any(row.failed or row.identical is False for row in ours):
        raise SystemExit(1)


def write_json(options: Options, found: Mapping[str, Any]) -> None:
    """Write results to the file that ``--json`` names, if any."""
    if options.json_path:
        options.json_path.write_text(json.dumps(found, indent=1) + "\n")


def _list_and_end(context: click.Context) -> None:
    for name in workloads.names(held_out=None):
        workload = workloads.get(name)
        mark = " [held out]" if workload.held_out else ""
        if workload.kind.by_name:
            mark = " [by name]"
        click.echo(f"{name:<22}{workload.summary}{mark}")
    context.exit()
