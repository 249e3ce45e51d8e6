"""The benchmarks whose outcome is one table: ``--failover``, ``--planning``, ``--pages``, ..."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from dask.utils import parse_bytes

from benchmarks import cancellation, failover, least_memory, memory_tight, small
from benchmarks import transfer as transfer_benchmark
from benchmarks.chaos import fault_injection, network_namespaces, soak
from benchmarks.chaos import run as chaos
from benchmarks.scheduler import first_task as first_tasks
from benchmarks.scheduler import observer_cost
from benchmarks.scheduler import planning as planning_benchmark
from dask_marsched.bench import report
from dask_marsched.bench.cluster import Setting
from dask_marsched.bench.workloads import Parameters


def kill(options: Any, chosen: tuple[str, ...], command: str) -> None:
    """Run the failover benchmark; ends with 1 if a run failed or a result was another one."""

    def show(k: failover.Killed) -> None:
        outcome = f"FAILED: {k.error}" if k.error else f"{k.seconds:.2f} s, {k.again} again"
        click.echo(f"  {k.repetition + 1}  {k.workload:<18}{k.contestant:<8}{outcome}", err=True)

    runs = failover.run(
        chosen,
        options.repeat,
        Parameters(options.size, parse_bytes(options.chunk)),
        workers=options.workers,
        timeout=options.timeout,
        progress=show,
    )
    _publish(options, command, failover.cells(runs), {"runs": list(map(asdict, runs))})
    if any(k.error or not k.same for k in runs):
        raise SystemExit(1)


def cancel(options: Any, command: str) -> None:
    """Run the cancelling benchmark; ends with 1 if a worker did not survive it."""
    found = cancellation.run()
    _publish(options, command, cancellation.cells(found), {"cancels": list(map(asdict, found))})
    if not all(c.healthy for c in found):
        raise SystemExit(1)


def transfer(options: Any, command: str) -> None:
    """Run the transfer benchmark; ends with 1 if chunks were not mapped."""
    measured = transfer_benchmark.run(options.repeat)
    fetches = {"fetches": list(map(asdict, measured))}
    _publish(options, command, transfer_benchmark.cells(measured), fetches)
    if any(m.mapped < m.fetches for m in measured):
        raise SystemExit(1)


def plan(options: Any, columns: tuple[str, ...], command: str) -> None:
    """Run the planning benchmark; ends with 1 if a measurement failed."""

    def show(p: planning_benchmark.Planning) -> None:
        outcome = f"FAILED: {p.error}" if p.error else f"{p.seconds:.2f} s for {p.tasks} tasks"
        click.echo(f"  {p.repetition + 1}  {p.policy:<12}{outcome}", err=True)

    measured = planning_benchmark.run(columns, options.planning, options.repeat, show)
    found = planning_benchmark.to_json(measured)
    _publish(options, command, planning_benchmark.cells(measured), found)
    if any(p.error for p in measured):
        raise SystemExit(1)


def first_task(options: Any, columns: tuple[str, ...], command: str) -> None:
    """Measure the time from `compute()` to the first task sent."""

    def show(a: first_tasks.Arrival) -> None:
        click.echo(f"  {a.shape:<11}{a.tasks:7d} {a.policy:<12}{1e3 * a.seconds:.1f} ms", err=True)

    measured = first_tasks.run(columns, options.first_task, options.repeat, show)
    found = {"arrivals": list(map(asdict, measured))}
    _publish(options, command, first_tasks.cells(measured), found)


def small_programs(
    options: Any, chosen: tuple[str, ...], columns: tuple[str, ...], command: str
) -> None:
    """Run small programs."""

    def show(r: small.Run) -> None:
        click.echo(f"  {r.workload:<22}{r.policy:<12}{1e3 * r.seconds:.0f} ms", err=True)

    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        parameters = Parameters(1.0, parse_bytes(options.chunk), Path(scratch))
        setting = Setting(options.workers, options.threads, parameters, options.timeout)
        runs = small.run(chosen, columns, options.repeat, setting, show)
    _publish(options, command, small.cells(runs), {"runs": list(map(asdict, runs))})


def pages(options: Any, command: str) -> None:
    """Measure what the dashboard's pages cost, and what they are told from."""
    from benchmarks.scheduler import pages as page_benchmark  # needs bokeh

    tasks, costs, slices = page_benchmark.page_costs(options.pages)
    click.echo(f"{tasks} operands on {page_benchmark.WORKERS} workers")
    found = {"tasks": tasks, "pages": list(map(asdict, costs)), "slices": slices}
    _publish(options, command, page_benchmark.cost_cells(costs, slices), found)


def observer(options: Any, command: str) -> None:
    """Measure what the observer costs the scheduler, with all pages closed."""
    from benchmarks.scheduler import pages as page_benchmark  # needs bokeh

    part = page_benchmark.share(options.observer)
    click.echo(f"The observer takes {part:.2%} of a simulated scheduler's processor time.")
    pairs = observer_cost.throughput(
        options.observer, options.repeat, lambda text: click.echo(f"  {text}", err=True)
    )
    _publish(options, command, observer_cost.cells(pairs), {"share": part, "pairs": pairs})


def soak_it(options: Any, seconds: float, command: str) -> None:
    """Run the soak; ends with 1 if a result was wrong or missing, or something was left."""
    outcome = soak.run(
        seconds,
        workers=options.workers,
        threads=options.threads,
        every=options.kill_every or soak.KILL_EVERY,
        sizes=[options.size * size for size in soak.SIZES],
        progress=lambda text: click.echo(f"  {text}", err=True),
    )
    _publish(options, command, soak.cells(outcome), asdict(outcome))
    _end(outcome, [*outcome.wrong, *outcome.failed, *outcome.left])


def chaos_it(options: Any, seconds: float, command: str) -> None:
    """Run the chaos; ends with 1 if anything went wrong, hung or was left."""
    if not network_namespaces.is_inside() and network_namespaces.is_possible():
        network_namespaces.enter([sys.executable, "-m", "benchmarks", *sys.argv[1:]])
    outcome = chaos.run(
        seconds,
        every=options.kill_every or fault_injection.KILL_EVERY,
        progress=lambda text: click.echo(f"  {text}", err=True),
    )
    _publish(options, command, chaos.cells(outcome), asdict(outcome))
    own = [f"{count} exceptions in {hook}" for hook, count in outcome.exceptions.items()]
    _end(outcome, [*outcome.wrong, *outcome.failed, *outcome.hung, *outcome.left, *own])


def _end(outcome: soak.Soak, lines: list[str]) -> None:
    click.echo("\n".join(lines))
    if not outcome.passed:
        raise SystemExit(1)


def tight(options: Any, chosen: tuple[str, ...], command: str) -> None:
    """Run the memory-tight set; ends with 1 if a run with the plugin failed."""

    def show(run: memory_tight.TightRun) -> None:
        outcome = f"FAILED: {run.error}" if run.error else f"{run.seconds:.1f} s"
        click.echo(
            f"  {run.repetition + 1}  {run.workload:<14}{run.contestant:<9}{outcome}, restarts "
            f"{run.restarts}, peak {run.peak:.0%}, spilled {(run.spilled or 0) / 1e6:.0f} MB",
            err=True,
        )

    try:
        runs = memory_tight.measure_all(
            chosen,
            options.repeat,
            options.size,
            options.timeout,
            show,
            options.policies or memory_tight.COMPARED,
            parse_bytes(options.memory_limit),
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    _publish(options, command, memory_tight.cells(runs), memory_tight.to_json(runs))
    if any(run.error for run in runs if run.contestant == "default"):
        raise SystemExit(1)


def find_least_memory(options: Any, chosen: tuple[str, ...], command: str) -> None:
    """Search for the least memory that suffices."""

    def show(limit: int, run: memory_tight.TightRun) -> None:
        outcome = f"FAILED: {run.error}" if run.error else f"{run.seconds:.1f} s"
        shown = f"{run.workload:<14}{run.contestant:<9}{limit / 1e6:.0f} MB"
        click.echo(f"  {shown}: {outcome}, restarts {run.restarts}", err=True)

    try:
        found = least_memory.find_all(
            chosen,
            options.policies or ("stock", "default"),
            options.repeat,
            options.size,
            options.timeout,
            show,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    _publish(options, command, least_memory.cells(found), {"found": list(map(asdict, found))})


def _publish(options: Any, command: str, table: list[list[str]], found: dict[str, Any]) -> None:
    click.echo(report.text_table(table))
    if options.json_path:
        facts = {"command": command, "cores": os.cpu_count(), "versions": report.versions()}
        options.json_path.write_text(json.dumps({**facts, **found}, indent=1) + "\n")
    if options.markdown_path:
        shown = [report.made_by(command), report.markdown_table(table)]
        options.markdown_path.write_text("\n\n".join(shown) + "\n")
