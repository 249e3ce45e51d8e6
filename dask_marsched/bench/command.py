"""``dask marsched bench``."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from dask.utils import parse_bytes

from . import (
    against_frisky,
    against_twin,
    cold_kernels,
    one_table,
    report,
    runner,
    simulated,
    soak,
    tormentor,
    workloads,
)
from . import kernels as kernel_benchmark
from .cluster import DEFAULT, Setting, policy_plugin
from .metrics import FRISKY, STOCK, Measurement, aggregate
from .workloads import Kind, Parameters, Workload


def _names(value: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in value.split(",") if name.strip())


def _listing() -> str:
    lines = []
    for name in workloads.names(held_out=None):
        workload = workloads.get(name)
        mark = " [held out]" if workload.held_out else ""
        if workload.kind.by_name:
            mark = " [by name]"
        lines.append(f"{name:<22}{workload.summary}{mark}")
    return "\n".join(lines)


def _columns(policies: tuple[str, ...]) -> tuple[str, ...]:
    """Name the policies so that one given twice makes two columns."""
    seen: dict[str, int] = {}
    columns = []
    for policy in policies:
        seen[policy] = seen.get(policy, 0) + 1
        columns.append(policy if seen[policy] == 1 else f"{policy}#{seen[policy]}")
    return tuple(columns)


def _frisky_opener(python: Path) -> runner.Opener:
    def open_it(policy: str, setting: Setting, chosen: tuple[Workload, ...]) -> runner.Contestant:
        return against_frisky.FriskyCluster(python, policy, setting, chosen)

    return open_it


def _progress(measurement: Measurement) -> None:
    m = measurement
    if m.error:
        outcome = f"FAILED: {m.error}"
    else:
        moved = "-" if m.moved is None else f"{m.moved / report.MIB:.1f} MiB moved"
        outcome = f"{m.seconds:.2f} s, {moved}"
    click.echo(f"  {m.repetition + 1}  {m.workload:<22}{m.policy:<12}{outcome}", err=True)


@click.command("bench", help="Measure workloads under stock Dask and this package's policies.")
@click.option("--select", default="", help="Names of workloads, separated by commas.")
@click.option("--held-out", is_flag=True, help="Run the set that never served to tune anything.")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    help="stock, default, or the name of an assignment, with +off, +chains or +subgraphs behind "
    "it for how tasks are joined, +kernels or +nokernels, +noquota, +shared or +unshared for "
    "these parts of the workers, or without; may be given several times. "
    "[default: stock and default; with --memory-tight stock, tuned and default, of these and "
    "shared]",
)
@click.option("--repeat", default=3, show_default=True, type=click.IntRange(min=1))
@click.option("--workers", default=4, show_default=True, type=click.IntRange(min=1))
@click.option("--threads", default=1, show_default=True, type=click.IntRange(min=1))
@click.option("--size", default=1.0, show_default=True, help="Factor on the number of chunks.")
@click.option("--chunk", default="8 MiB", show_default=True, help="Size of the typical chunk.")
@click.option("--timeout", default=300.0, show_default=True, help="Seconds for one run.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--markdown", "markdown_path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--against", type=click.Choice([FRISKY]), help="Another scheduler.")
@click.option(
    "--frisky-python",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Interpreter of an environment that holds Frisky. [default: one made in the cache]",
)
@click.option(
    "--twin", is_flag=True, help="Beside every real run show what the digital twin says of it."
)
@click.option(
    "--simulated",
    multiple=True,
    type=click.IntRange(min=1),
    metavar="WORKERS",
    help="Run the workloads in the digital twin only, on that many workers, their size in "
    "proportion; may be given several times.",
)
@click.option("--workers-per-host", default=1, show_default=True, help="Of the simulated cluster.")
@click.option("--cores", type=float, help="Simulate one host with that many cores.")
@click.option(
    "--planning",
    multiple=True,
    type=click.IntRange(min=1),
    metavar="TASKS",
    help="Instead of workloads, time the scheduler up to the first task sent of a graph of that "
    "many tasks; may be given several times.",
)
@click.option(
    "--first-task",
    multiple=True,
    type=click.IntRange(min=1),
    metavar="TASKS",
    help="Instead of workloads, time three shapes of graphs of that many tasks from compute() to "
    "the first task sent; may be given several times.",
)
@click.option(
    "--small",
    is_flag=True,
    help="Run workloads (or those of --select) at a tenth of their size, and interactive ones.",
)
@click.option(
    "--pages",
    type=click.IntRange(min=100),
    metavar="TASKS",
    help="Instead of workloads, time the dashboard's pages on a graph of that many tasks.",
)
@click.option(
    "--observer",
    type=click.IntRange(min=100),
    metavar="TASKS",
    help="Instead of workloads, compare a scheduler with and without the observer.",
)
@click.option(
    "--memory-tight",
    is_flag=True,
    help="Run the workloads whose live data is several times the cluster's memory, on two workers "
    "with two threads and 500 MB each, beside stock Dask as it comes and with tuned thresholds.",
)
@click.option(
    "--memory-limit",
    default="500 MB",
    show_default=True,
    help="Of each worker of --memory-tight.",
)
@click.option(
    "--least-memory",
    is_flag=True,
    help="Find the least memory limit with which workloads of --memory-tight come through without "
    "an error and without a worker that had to be replaced.",
)
@click.option(
    "--transfer",
    is_flag=True,
    help="Instead of workloads, time how chunks get from one worker to another of the same host.",
)
@click.option(
    "--kernels",
    is_flag=True,
    help="Instead of workloads, time fused kernels beside what Dask runs, on one thread, and what "
    "compiling them costs a program that starts.",
)
@click.option(
    "--failover",
    "kills",
    is_flag=True,
    help="Kill a worker in the middle of each of five workloads (or of --select), under stock Dask "
    "and with marsched.failover.adopt: all.",
)
@click.option(
    "--cancel",
    is_flag=True,
    help="Instead of workloads, cancel what runs, under stock Dask and with "
    "marsched.cancelling.interrupt.",
)
@click.option(
    "--soak",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Run mixed work for so long with little memory, while worker processes are killed at "
    "random; then look for what was left behind.",
)
@click.option(
    "--chaos",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Run mixed work for so long on two hosts of two workers each, while worker processes are "
    "killed and stopped and the wire between the hosts is cut; where there can be no hosts of "
    "one's own (it takes Linux, iproute2 and unshare), on one and without cuts.",
)
@click.option(
    "--kill-every",
    type=click.FloatRange(min=0.1),
    help="Mean time between two kills of --soak and --chaos, seconds. [default: "
    f"{soak.KILL_EVERY:g} and {tormentor.KILL_EVERY:g}]",
)
@click.option("--list", "list_them", is_flag=True, help="List the workloads and end.")
def bench(list_them: bool, **options: Any) -> None:
    """Run the benchmark; ends with 1 if a run failed or results differ."""
    if list_them:
        click.echo(_listing())
        return
    chosen = Options(**options)
    if chosen.memory_tight:
        one_table.tight(chosen, _names(chosen.select), _command())
        return
    if chosen.least_memory:
        one_table.find_least_memory(chosen, _names(chosen.select), _command())
        return
    chosen.policies = chosen.policies or (STOCK, DEFAULT)
    for policy in chosen.policies:
        try:
            policy_plugin(policy)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
    if chosen.kernels:
        _kernels(chosen)
    elif chosen.soak is not None:
        one_table.soak_it(chosen, chosen.soak, _command())
    elif chosen.chaos is not None:
        one_table.chaos_it(chosen, chosen.chaos, _command())
    elif chosen.kills:
        one_table.kill(chosen, _names(chosen.select), _command())
    elif chosen.cancel:
        one_table.cancel(chosen, _command())
    elif chosen.transfer:
        one_table.transfer(chosen, _command())
    elif chosen.simulated:
        _simulate(chosen)
    elif chosen.pages:
        one_table.pages(chosen, _command())
    elif chosen.observer:
        one_table.observer(chosen, _command())
    elif chosen.first_task:
        one_table.first_task(chosen, _columns(chosen.policies), _command())
    elif chosen.small:
        names = _names(chosen.select)
        one_table.small_programs(chosen, names, _columns(chosen.policies), _command())
    elif chosen.planning:
        one_table.plan(chosen, _columns(chosen.policies), _command())
    else:
        _run(chosen)


@dataclass
class Options:
    """The options of the command line, as they were given."""

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
    against: str | None
    frisky_python: Path | None
    twin: bool
    simulated: tuple[int, ...]
    workers_per_host: int
    cores: float | None
    planning: tuple[int, ...]
    first_task: tuple[int, ...]
    small: bool
    pages: int | None
    observer: int | None
    memory_tight: bool
    memory_limit: str
    least_memory: bool
    transfer: bool
    kernels: bool
    kills: bool
    cancel: bool
    soak: float | None
    chaos: float | None
    kill_every: float | None


def _run(options: Options) -> None:
    """Run workloads."""
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        try:
            chosen = workloads.select(_names(options.select), options.held_out)
            parameters = Parameters(options.size, parse_bytes(options.chunk), Path(scratch))
            python = against_frisky.environment(options.frisky_python) if options.against else None
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        setting = Setting(options.workers, options.threads, parameters, options.timeout)
        columns = _columns(options.policies)
        if options.twin:
            compared = against_twin.run(chosen, columns, options.repeat, setting, _progress)
            _publish_twin(compared, options)
            return
        openers: dict[str, runner.Opener] = {}
        if python is not None:
            columns = (*columns, FRISKY)
            openers[FRISKY] = _frisky_opener(python)
        outcome = runner.run(chosen, columns, options.repeat, setting, _progress, openers)
    _publish(outcome, chosen, options)


def _publish_twin(compared: list[against_twin.Comparison], options: Options) -> None:
    """Show the twin beside reality; ends with 1 if a run failed, not if the twin is off."""
    typical = against_twin.medians(compared)
    tables = [against_twin.cells(typical), against_twin.summary_cells(typical)]
    click.echo("\n\n".join([*map(report.text_table, tables), against_twin.NOTE]))
    if options.json_path:
        found = {"command": _command(), "cores": os.cpu_count(), "versions": report.versions()}
        found.update(against_twin.to_json(compared))
        options.json_path.write_text(json.dumps(found, indent=1) + "\n")
    if options.markdown_path:
        shown = [report.made_by(_command()), *map(report.markdown_table, tables), against_twin.NOTE]
        options.markdown_path.write_text("\n\n".join(shown) + "\n")
    if any(c.error and not c.real for c in compared):
        raise SystemExit(1)


def _simulate(options: Options) -> None:
    """Run workloads in the twin."""

    def show(s: simulated.Simulated) -> None:
        outcome = s.error or f"{s.seconds:.2f} s, {s.moved / report.MIB:.0f} MiB moved"
        click.echo(f"  {s.workers:5d}  {s.workload:<22}{s.policy:<12}{outcome}", err=True)

    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        try:
            chosen = workloads.select(_names(options.select), options.held_out)
            parameters = Parameters(options.size, parse_bytes(options.chunk), Path(scratch))
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        found = simulated.run(
            [w for w in chosen if w.kind in (Kind.DATA, Kind.PRODUCTS)],
            options.policies,
            options.simulated,
            parameters,
            workers_per_host=options.workers_per_host,
            cores=options.cores,
            threads=options.threads,
            progress=show,
        )
    tables = [simulated.cells(found), simulated.summary_cells(found)]
    click.echo("\n\n".join(map(report.text_table, tables)))
    if options.json_path:
        written = {"command": _command(), "versions": report.versions(), **simulated.to_json(found)}
        options.json_path.write_text(json.dumps(written, indent=1) + "\n")
    if options.markdown_path:
        shown = [report.made_by(_command()), *map(report.markdown_table, tables)]
        options.markdown_path.write_text("\n\n".join(shown) + "\n")


def _kernels(options: Options) -> None:
    """Run the benchmark of kernels."""

    def show(c: kernel_benchmark.Comparison) -> None:
        shown = f"{c.expression:<16}{c.form:<12}{c.dtype} {c.mib:3d} MiB"
        click.echo(f"  {shown}  {c.gain:6.2f}  {c.backend}", err=True)

    measured = kernel_benchmark.run(show)
    cold = cold_kernels.run(options.repeat)
    rows = [["200 chunks", "s"], *([name, f"{seconds:.2f}"] for name, seconds in cold)]
    tables = [kernel_benchmark.cells(measured), kernel_benchmark.summary_cells(measured), rows]
    click.echo("\n\n".join(map(report.text_table, tables)))
    if options.json_path:
        found = {
            "command": _command(),
            "versions": report.versions(),
            "comparisons": list(map(asdict, measured)),
            "cold": cold,
        }
        options.json_path.write_text(json.dumps(found, indent=1) + "\n")
    if options.markdown_path:
        shown = [report.made_by(_command()), *map(report.markdown_table, tables)]
        options.markdown_path.write_text("\n\n".join(shown) + "\n")


def _command() -> str:
    """Return the command line as the user would type it."""
    arguments = sys.argv[1:]
    if "bench" in arguments:
        arguments = arguments[arguments.index("bench") + 1 :]
    return shlex.join(["dask", "marsched", "bench", *arguments])


def _publish(outcome: runner.Outcome, chosen: tuple[Workload, ...], options: Options) -> None:
    overhead = [w.name for w in chosen if w.kind is Kind.OVERHEAD]
    rows = aggregate(outcome.measurements, overhead)
    command = _command()
    peers = aggregate(outcome.measurements, overhead, base=FRISKY)
    click.echo(report.render(rows, peers, report.text_table))
    if options.json_path:
        options.json_path.write_text(
            json.dumps(report.to_json(outcome, rows, peers, command), indent=1) + "\n"
        )
    if options.markdown_path:
        options.markdown_path.write_text(report.markdown_page(rows, peers, command))
    ours = [row for row in rows if row.policy != FRISKY]
    if any(row.failed or row.identical is False for row in ours):
        raise SystemExit(1)


if __name__ == "__main__":
    bench()
