"""``python -m benchmarks``: workloads under each policy, and the other experiments."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from benchmarks import verdicts
from benchmarks.chaos import fault_injection, soak
from benchmarks.experiments import EXPERIMENTS
from benchmarks.frisky import cluster as frisky
from benchmarks.hosts import network_namespaces
from benchmarks.hosts.cluster import HostsCluster
from benchmarks.options import Options
from benchmarks.publishing import prepare, publish
from dask_marsched.bench import command, runner
from dask_marsched.bench.metrics import aggregate


def _many(name: str, metavar: str, text: str) -> Callable[[command.F], command.F]:
    """Return a decorator for an option that takes a whole number, several times."""
    return click.option(
        name,
        multiple=True,
        type=click.IntRange(min=1),
        metavar=metavar,
        help=text + "; may be given several times.",
    )


@click.command("benchmarks", help=__doc__)
@command.workload_options
@click.option("--markdown", "markdown_path", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--held-out", is_flag=True, help="Run the workloads that never served to tune anything."
)
@click.option("--against", type=click.Choice([verdicts.FRISKY]), help="Another scheduler.")
@click.option(
    "--frisky-python",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Interpreter of an environment that holds Frisky. [default: one made in the cache]",
)
@click.option("--twin", is_flag=True, help="Compare every real run with the digital twin.")
@_many(
    "--simulated",
    "WORKERS",
    "Run the workloads in the digital twin only, on that many workers, their size in proportion",
)
@click.option(
    "--hosts",
    type=click.IntRange(2, 200),
    help="Run the workloads on that many hosts, which are network namespaces of Linux.",
)
@click.option(
    "--rate", default="1gbit", show_default=True, help="Of the links of --hosts, each direction."
)
@click.option(
    "--uneven",
    is_flag=True,
    help="The workers of the last of --hosts are half as fast and have half the memory.",
)
@click.option(
    "--workers-per-host",
    default=1,
    show_default=True,
    help="Of --hosts and of the simulated cluster.",
)
@click.option("--cores", type=float, help="Simulate one host with that many cores.")
@_many(
    "--planning",
    "TASKS",
    "Time the scheduler up to the first task sent of a graph of that many tasks",
)
@_many(
    "--first-task",
    "TASKS",
    "Time three shapes of graphs of that many tasks from compute() to the first task sent",
)
@click.option(
    "--small",
    is_flag=True,
    help="Run workloads (or those of --select) at a tenth of their size, and interactive ones.",
)
@_many(
    "--tiny",
    "TASKS",
    "Map a function over so many numbers, call it 1,000 times in a row, and map from ten clients",
)
@click.option(
    "--pages",
    type=click.IntRange(min=100),
    metavar="TASKS",
    help="Time the dashboard's pages on a graph of that many tasks.",
)
@click.option(
    "--observer",
    type=click.IntRange(min=100),
    metavar="TASKS",
    help="Compare a scheduler with and without the observer.",
)
@click.option(
    "--memory-tight",
    is_flag=True,
    help="Run the workloads whose live data is several times the cluster's memory, on two workers "
    "with two threads and 500 MB each, beside stock Dask with default and with tuned thresholds.",
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
    help="Find the least memory limit with which workloads of --memory-tight run without an error "
    "and without a worker that had to be replaced.",
)
@click.option(
    "--transfer", is_flag=True, help="Time the transfer of chunks between workers of one host."
)
@click.option(
    "--kernels",
    is_flag=True,
    help="Compare fused kernels with Dask's own tasks on one thread, and time their compilation "
    "in a program that starts.",
)
@click.option(
    "--elementwise",
    is_flag=True,
    help="Time elementwise programs over arrays in memory: the first run on a new cluster, for "
    "which nothing was compiled before, and later ones.",
)
@click.option(
    "--failover",
    is_flag=True,
    help="Kill a worker in the middle of each of five workloads (or of --select), under stock Dask "
    "and with marsched.failover.adopt: all.",
)
@click.option(
    "--restart",
    type=click.IntRange(min=1),
    metavar="KILLS",
    help="Kill the scheduler so often at random moments of programs (or of those that --select "
    "names) and start it again with its journal.",
)
@click.option("--seed", default=0, show_default=True, help="Of the moments of --restart.")
@_many(
    "--back-after",
    "TASKS",
    "Kill the scheduler in graphs of that many tasks, and time the first task after its return",
)
@click.option(
    "--journal",
    is_flag=True,
    help="Run 10,000 tiny tasks and workloads (or those of --select) with and without a journal.",
)
@click.option(
    "--tpch",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Run the 22 queries of TPC-H (or those of --select) on the data there, which "
    "`python -m benchmarks.tpch.data` makes.",
)
@click.option(
    "--programs",
    is_flag=True,
    help="Run whole programs of data frames, arrays, bags, delayed functions, futures and xarray "
    "(or those of --select).",
)
@click.option(
    "--public",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Run the tests of github.com/coiled/benchmarks that need no cloud (or those whose ids "
    "contain a word of --select), from a clone in that directory. They import filelock, sqlalchemy "
    "and python-dotenv.",
)
@click.option(
    "--cancel",
    is_flag=True,
    help="Cancel running tasks, under stock Dask and with marsched.cancelling.interrupt.",
)
@click.option(
    "--soak",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Run mixed work for so long with little memory, while worker processes are killed at "
    "random; then look for leaked memory, files and processes.",
)
@click.option(
    "--chaos",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Run mixed work for so long on two hosts of two workers each, while worker processes are "
    "killed and stopped, the scheduler is killed and the network between the hosts is cut. Without "
    "network namespaces (Linux, iproute2 and unshare) it runs on one host and without cuts.",
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
    named = [name for name in EXPERIMENTS if getattr(chosen, name) not in (None, False, ())]
    if len(named) > 1:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in named)
        raise click.UsageError(f"{flags} are experiments of their own: name one of them")
    try:
        return EXPERIMENTS[named[0]](chosen) if named else _compare(chosen)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _compare(options: Options) -> None:
    """Run workloads under each policy."""
    if options.uneven and not options.hosts:
        raise click.UsageError("--uneven needs --hosts")
    if options.hosts and options.against:
        raise click.UsageError(f"--against {options.against} runs on one host")
    columns = command.policy_columns(options.policies)
    openers: dict[str, runner.Opener] = {}
    if options.against:
        columns = (*columns, verdicts.FRISKY)
        openers[verdicts.FRISKY] = _frisky_opener(options)
    with contextlib.ExitStack() as stack:
        if options.hosts:
            opener, workers = stack.enter_context(_hosts(options, options.hosts))
            options.workers = workers
            openers.update(dict.fromkeys(columns, opener))
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        selected, setting = prepare(options, Path(scratch))
        outcome = runner.run(
            selected, columns, options.repeat, setting, command.show_progress, openers
        )
    tables, notes = verdicts.tables(outcome)
    publish(options, tables, verdicts.to_json(outcome), *notes)
    rows = aggregate(outcome.measurements)
    command.exit_by([row for row in rows if row.policy != verdicts.FRISKY])


@contextlib.contextmanager
def _hosts(options: Options, count: int) -> Iterator[tuple[runner.Opener, int]]:
    """Give what opens clusters on so many hosts, and their workers."""
    try:
        network_namespaces.bits_per_second(options.rate)
    except ValueError as error:
        raise click.UsageError(f"--rate: {error}") from error
    if not network_namespaces.is_possible("tc"):
        raise click.UsageError("--hosts needs network namespaces of Linux: ip, bridge, tc, unshare")
    network_namespaces.be_inside()
    with network_namespaces.hosts(count, options.rate) as hosts:
        opener = functools.partial(HostsCluster, hosts, options.uneven)
        yield opener, count * options.workers_per_host


def _frisky_opener(options: Options) -> runner.Opener:
    try:
        python = frisky.environment(options.frisky_python)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return functools.partial(frisky.FriskyCluster, python)
