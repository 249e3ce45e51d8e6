"""``python -m benchmarks``: workloads, and everything else that is measured of this package."""

from __future__ import annotations

import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks import simulated, tables, twin_agreement
from benchmarks.chaos import fault_injection, soak
from benchmarks.frisky import cluster as frisky
from benchmarks.kernels import cold
from benchmarks.kernels import run as kernels
from dask_marsched.bench import command, report, runner
from dask_marsched.bench.cluster import Setting
from dask_marsched.bench.command import policy_columns, prepare, show_progress, split_names
from dask_marsched.bench.metrics import FRISKY
from dask_marsched.bench.workloads import Kind, Workload


@click.command("benchmarks", help=__doc__)
@command.workload_options
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
    f"{soak.KILL_EVERY:g} and {fault_injection.KILL_EVERY:g}]",
)
def bench(**options: Any) -> None:
    """Run the benchmark; exit with 1 if a run failed or results differ."""
    chosen = Options(**options)
    names = split_names(chosen.select)
    if chosen.memory_tight:
        tables.tight(chosen, names, _command())
    elif chosen.least_memory:
        tables.find_least_memory(chosen, names, _command())
    elif chosen.kernels:
        _kernels(chosen)
    elif chosen.soak is not None:
        tables.soak_it(chosen, chosen.soak, _command())
    elif chosen.chaos is not None:
        tables.chaos_it(chosen, chosen.chaos, _command())
    elif chosen.kills:
        tables.kill(chosen, names, _command())
    elif chosen.cancel:
        tables.cancel(chosen, _command())
    elif chosen.transfer:
        tables.transfer(chosen, _command())
    elif chosen.pages:
        tables.pages(chosen, _command())
    elif chosen.observer:
        tables.observer(chosen, _command())
    else:
        _compare(chosen, policy_columns(chosen), names)


@dataclass(kw_only=True)
class Options(command.Options):
    """Options of the command line."""

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


def _compare(options: Options, columns: tuple[str, ...], names: tuple[str, ...]) -> None:
    """Run what compares policies."""
    if options.simulated:
        _simulate(options)
    elif options.first_task:
        tables.first_task(options, columns, _command())
    elif options.small:
        tables.small_programs(options, names, columns, _command())
    elif options.planning:
        tables.plan(options, columns, _command())
    else:
        _run(options, columns)


def _run(options: Options, columns: tuple[str, ...]) -> None:
    """Run workloads."""
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        selected, setting = prepare(options, Path(scratch))
        if options.twin:
            compared = twin_agreement.run(selected, columns, options.repeat, setting, show_progress)
            _publish_twin(compared, options)
            return
        openers: dict[str, runner.Opener] = {}
        if options.against:
            columns = (*columns, FRISKY)
            openers[FRISKY] = _frisky_opener(options)
        outcome = runner.run(selected, columns, options.repeat, setting, show_progress, openers)
    command.publish(outcome, selected, options, _command())


def _frisky_opener(options: Options) -> runner.Opener:
    try:
        python = frisky.environment(options.frisky_python)
    except ValueError as error:
        raise click.UsageError(str(error)) from error

    def open_it(policy: str, setting: Setting, chosen: tuple[Workload, ...]) -> runner.Contestant:
        return frisky.FriskyCluster(python, policy, setting, chosen)

    return open_it


def _publish_twin(compared: list[twin_agreement.Comparison], options: Options) -> None:
    """Show the twin beside reality; exit with 1 if a run failed, not if the twin is off."""
    typical = twin_agreement.medians(compared)
    shown = [twin_agreement.cells(typical), twin_agreement.summary_cells(typical)]
    _show(options, shown, twin_agreement.to_json(compared), twin_agreement.NOTE)
    if any(c.error and not c.real for c in compared):
        raise SystemExit(1)


def _simulate(options: Options) -> None:
    """Run workloads in the twin."""

    def show(s: simulated.Simulated) -> None:
        outcome = s.error or f"{s.seconds:.2f} s, {s.moved / report.MIB:.0f} MiB moved"
        click.echo(f"  {s.workers:5d}  {s.workload:<22}{s.policy:<12}{outcome}", err=True)

    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        selected, setting = prepare(options, Path(scratch))
        found = simulated.run(
            [w for w in selected if w.kind in (Kind.DATA, Kind.PRODUCTS)],
            options.policies,
            options.simulated,
            setting.parameters,
            workers_per_host=options.workers_per_host,
            cores=options.cores,
            threads=options.threads,
            progress=show,
        )
    shown = [simulated.cells(found), simulated.summary_cells(found)]
    _show(options, shown, simulated.to_json(found))


def _kernels(options: Options) -> None:
    """Run the benchmark of kernels."""

    def show(c: kernels.Comparison) -> None:
        shown = f"{c.expression:<16}{c.form:<12}{c.dtype} {c.mib:3d} MiB"
        click.echo(f"  {shown}  {c.gain:6.2f}  {c.backend}", err=True)

    measured = kernels.run(show)
    starts = cold.run(options.repeat)
    rows = [["200 chunks", "s"], *([name, f"{seconds:.2f}"] for name, seconds in starts)]
    shown = [kernels.cells(measured), kernels.summary_cells(measured), rows]
    _show(options, shown, {"comparisons": list(map(asdict, measured)), "cold": starts})


def _show(options: Options, shown: list[report.Cells], found: dict[str, Any], *notes: str) -> None:
    """Show tables, and write the files that were asked for."""
    click.echo("\n\n".join([*map(report.text_table, shown), *notes]))
    facts = {"command": _command(), "cores": os.cpu_count(), "versions": report.versions()}
    command.write_json(options, facts | found)
    if options.markdown_path:
        page = [report.made_by(_command()), *map(report.markdown_table, shown), *notes]
        options.markdown_path.write_text("\n\n".join(page) + "\n")


def _command() -> str:
    return command.command_line("python", "-m", "benchmarks")
