"""Runs the experiment that an option of ``python -m benchmarks`` selects, and shows its outcome.

Each function gets the options, publishes a table, and exits with 1 if something went wrong.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import click
from dask.utils import parse_bytes

from benchmarks import (
    cancellation,
    failover,
    least_memory,
    memory_tight,
    simulated,
    small,
    tiny,
    transfer,
    twin_agreement,
)
from benchmarks.chaos import chaos_run, fault_injection, soak
from benchmarks.hosts import network_namespaces
from benchmarks.kernels import cold, comparison, elementwise
from benchmarks.options import Options
from benchmarks.publishing import exit_if, prepare, publish
from benchmarks.restarts import cost, kills
from benchmarks.scheduler import first_task, observer_cost, planning
from benchmarks.suite_experiments import run_programs, run_public, run_tpch
from dask_marsched.bench import report
from dask_marsched.bench.cluster import DEFAULT, Setting
from dask_marsched.bench.command import policy_columns, show_progress
from dask_marsched.bench.metrics import STOCK
from dask_marsched.bench.workloads import Kind, Parameters


def _say(text: str) -> None:
    click.echo(f"  {text}", err=True)


def run_failover(options: Options) -> None:
    """Kill a worker in workloads; a run that failed or gave another result is wrong."""

    def show(k: failover.Killed) -> None:
        outcome = f"FAILED: {k.error}" if k.error else f"{k.seconds:.2f} s, {k.again} again"
        _say(f"{k.repetition + 1}  {k.workload:<18}{k.contestant:<8}{outcome}")

    runs = failover.run(
        options.names,
        options.repeat,
        Parameters(options.size, parse_bytes(options.chunk)),
        workers=options.workers,
        timeout=options.timeout,
        progress=show,
    )
    publish(options, [failover.cells(runs)], {"runs": list(map(asdict, runs))})
    exit_if(any(k.error or not k.same for k in runs))


def run_restart(options: Options) -> None:
    """Kill the scheduler; a result that is wrong or does not come is wrong."""
    assert options.restart is not None

    def show(o: kills.RestartOutcome) -> None:
        kill = o.kill
        outcome = "right" if o.passed else f"{'HUNG' if o.hung else 'FAILED'}: {o.error}"
        again = f", {o.again} again: {o.example}" if o.again else ""
        _say(f"{kill.number:3d}  {kill.program:<18}{kill.moment:<12}{outcome}{again}")

    outcomes = kills.run(
        options.restart,
        seed=options.seed,
        workers=options.workers,
        only=options.names,
        progress=show,
    )
    publish(options, [kills.cells(outcomes)], {"kills": list(map(asdict, outcomes))})
    exit_if(not all(o.passed for o in outcomes))


def run_back_after(options: Options) -> None:
    """Time the return of a scheduler that was killed in a large graph."""

    def show(r: cost.Return) -> None:
        _say(f"{r.program:<11}{r.tasks:8d} tasks: {r.back:.2f} s")

    found = cost.measure_return(options.back_after, options.workers, show)
    publish(options, [cost.return_cells(found)], {"returns": list(map(asdict, found))})


def run_journal(options: Options) -> None:
    """Measure what a journal costs; a result that differs is wrong."""

    def show(r: cost.JournalRun) -> None:
        _say(f"{r.program:<22}{'journal' if r.journal else 'none':<9}{r.seconds:.2f} s")

    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        selected, setting = prepare(options, Path(scratch))
        runs, first = cost.measure_cost(
            selected, setting.parameters, options.repeat, options.workers, show
        )
    found = {"runs": list(map(asdict, runs)), "first_tasks": list(map(asdict, first))}
    publish(options, [cost.cost_cells(runs, first)], found)
    exit_if(len({(r.program, r.digest) for r in runs}) > len({r.program for r in runs}))


def run_cancellation(options: Options) -> None:
    """Cancel tasks that run; a worker that did not survive it is wrong."""
    found = cancellation.run()
    publish(options, [cancellation.cells(found)], {"cancels": list(map(asdict, found))})
    exit_if(not all(c.healthy for c in found))


def run_transfer(options: Options) -> None:
    """Fetch chunks between workers of a host; a chunk that was not mapped is wrong."""
    measured = transfer.run(options.repeat)
    publish(options, [transfer.cells(measured)], {"fetches": list(map(asdict, measured))})
    exit_if(any(m.mapped < m.fetches for m in measured))


def run_planning(options: Options) -> None:
    """Time the scheduler up to the first task sent; a failed measurement is wrong."""

    def show(p: planning.Planning) -> None:
        outcome = f"FAILED: {p.error}" if p.error else f"{p.seconds:.2f} s for {p.tasks} tasks"
        _say(f"{p.repetition + 1}  {p.policy:<12}{outcome}")

    measured = planning.run(
        policy_columns(options.policies), options.planning, options.repeat, show
    )
    publish(options, [planning.cells(measured)], {"planning": list(map(asdict, measured))})
    exit_if(any(p.error for p in measured))


def run_first_task(options: Options) -> None:
    """Measure the time from `compute()` to the first task sent."""

    def show(a: first_task.Arrival) -> None:
        _say(f"{a.shape:<11}{a.tasks:7d} {a.policy:<12}{1e3 * a.seconds:.1f} ms")

    measured = first_task.run(
        policy_columns(options.policies), options.first_task, options.repeat, show
    )
    publish(options, [first_task.cells(measured)], {"arrivals": list(map(asdict, measured))})


def run_small(options: Options) -> None:
    """Time small programs."""

    def show(r: small.Run) -> None:
        _say(f"{r.workload:<22}{r.policy:<12}{1e3 * r.seconds:.0f} ms")

    columns = policy_columns(options.policies)
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        parameters = Parameters(1.0, parse_bytes(options.chunk), Path(scratch))
        setting = Setting(options.workers, options.threads, parameters, options.timeout)
        runs = small.run(options.names, columns, options.repeat, setting, show)
    publish(options, [small.cells(runs)], {"runs": list(map(asdict, runs))})


def run_elementwise(options: Options) -> None:
    """Time elementwise programs, cold and warm."""

    def show(r: elementwise.Run) -> None:
        _say(f"{r.program:<22}{r.policy:<12}{r.when:<6}{1e3 * r.seconds:.0f} ms")

    columns = policy_columns(options.policies)
    parameters = Parameters(options.size, parse_bytes(options.chunk))
    setting = Setting(options.workers, options.threads, parameters, options.timeout)
    runs = elementwise.run(options.names, columns, options.repeat, setting, show)
    publish(options, [elementwise.cells(runs)], {"runs": list(map(asdict, runs))})


def run_tiny(options: Options) -> None:
    """Time bags of tiny tasks."""

    def show(r: tiny.Run) -> None:
        _say(f"{r.program:<22}{r.policy:<12}{r.seconds:.2f} s")

    columns = policy_columns(options.policies)
    runs = tiny.run(options.tiny, columns, options.repeat, options.workers, show)
    publish(options, [tiny.cells(runs)], {"runs": list(map(asdict, runs))})


def run_pages(options: Options) -> None:
    """Measure the event loop's time for the dashboard's pages and the observer's layouts."""
    assert options.pages is not None
    from benchmarks.scheduler import pages  # needs bokeh

    tasks, costs, slices = pages.page_costs(options.pages)
    click.echo(f"{tasks} operands on {pages.WORKERS} workers")
    found = {"tasks": tasks, "pages": list(map(asdict, costs)), "slices": slices}
    publish(options, [pages.cost_cells(costs, slices)], found)


def run_observer(options: Options) -> None:
    """Measure the observer's cost for the scheduler, with all pages closed."""
    assert options.observer is not None
    from benchmarks.scheduler import pages  # needs bokeh

    part = pages.share(options.observer)
    click.echo(f"The observer takes {part:.2%} of a simulated scheduler's processor time.")
    pairs = observer_cost.throughput(options.observer, options.repeat, _say)
    publish(options, [observer_cost.cells(pairs)], {"share": part, "pairs": pairs})


def run_soak(options: Options) -> None:
    """Run mixed work while workers are killed; see `soak.run`."""
    assert options.soak is not None
    outcome = soak.run(
        options.soak,
        workers=options.workers,
        threads=options.threads,
        every=options.kill_every or soak.KILL_EVERY,
        sizes=[options.size * size for size in soak.SIZES],
        progress=_say,
    )
    faults = [*outcome.wrong, *outcome.failed, *outcome.left]
    publish(options, [soak.cells(outcome)], asdict(outcome), *faults)
    exit_if(not outcome.passed)


def run_chaos(options: Options) -> None:
    """Run mixed work while workers and the network fail; see `chaos_run.run`."""
    assert options.chaos is not None
    if network_namespaces.is_possible():
        network_namespaces.be_inside()
    every = options.kill_every or fault_injection.KILL_EVERY
    outcome = chaos_run.run(options.chaos, every=every, progress=_say)
    caught = [f"{count} exceptions in {hook}" for hook, count in outcome.exceptions.items()]
    faults = [*outcome.wrong, *outcome.failed, *outcome.hung, *outcome.left, *caught]
    publish(options, [chaos_run.cells(outcome)], asdict(outcome), *faults)
    exit_if(not outcome.passed)


def run_memory_tight(options: Options) -> None:
    """Run workloads that do not fit into memory; a failed run with the plugin is wrong."""

    def show(run: memory_tight.TightRun) -> None:
        outcome = f"FAILED: {run.error}" if run.error else f"{run.seconds:.1f} s"
        spilled = (run.spilled or 0) / 1e6
        _say(
            f"{run.repetition + 1}  {run.workload:<14}{run.contestant:<9}{outcome}, restarts "
            f"{run.restarts}, peak {run.peak:.0%}, spilled {spilled:.0f} MB"
        )

    runs = memory_tight.measure_all(
        options.names,
        options.repeat,
        options.size,
        options.timeout,
        show,
        options.policies or memory_tight.COMPARED,
        parse_bytes(options.memory_limit),
    )
    publish(options, [memory_tight.cells(runs)], memory_tight.to_json(runs))
    exit_if(any(run.error for run in runs if run.contestant == "default"))


def run_least_memory(options: Options) -> None:
    """Search for the least memory with which workloads pass."""

    def show(limit: int, run: memory_tight.TightRun) -> None:
        outcome = f"FAILED: {run.error}" if run.error else f"{run.seconds:.1f} s"
        shown = f"{run.workload:<14}{run.contestant:<9}{limit / 1e6:.0f} MB"
        _say(f"{shown}: {outcome}, restarts {run.restarts}")

    found = least_memory.find_all(
        options.names,
        options.policies or ("stock", "default"),
        options.repeat,
        options.size,
        options.timeout,
        show,
    )
    publish(options, [least_memory.cells(found)], {"found": list(map(asdict, found))})


def run_kernels(options: Options) -> None:
    """Time fused kernels, and the start of a program that compiles them."""

    def show(c: comparison.Comparison) -> None:
        shown = f"{c.expression:<16}{c.form:<12}{c.dtype} {c.mib:3d} MiB"
        _say(f"{shown}  {c.gain:6.2f}  {c.backend}")

    measured = comparison.run(show)
    starts = cold.run(options.repeat)
    rows = [["200 chunks", "s"], *([name, f"{seconds:.2f}"] for name, seconds in starts)]
    shown = [comparison.cells(measured), comparison.summary_cells(measured), rows]
    publish(options, shown, {"comparisons": list(map(asdict, measured)), "cold": starts})


def run_simulated(options: Options) -> None:
    """Simulate workloads with other numbers of workers."""

    def show(s: simulated.Simulated) -> None:
        outcome = s.error or f"{s.seconds:.2f} s, {s.moved / report.MIB:.0f} MiB moved"
        _say(f"{s.workers:5d}  {s.workload:<22}{s.policy:<12}{outcome}")

    policies = options.policies or (STOCK, DEFAULT)
    policy_columns(policies)  # checks them
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        selected, setting = prepare(options, Path(scratch))
        found = simulated.run(
            [w for w in selected if w.kind in (Kind.DATA, Kind.HELD_OUT, Kind.PRODUCTS)],
            policies,
            options.simulated,
            setting.parameters,
            workers_per_host=options.workers_per_host,
            cores=options.cores,
            threads=options.threads,
            progress=show,
        )
    shown = [simulated.cells(found), simulated.summary_cells(found)]
    publish(options, shown, {"simulated": list(map(asdict, found))})


def run_twin(options: Options) -> None:
    """Compare real runs with the digital twin's; only a failed real run is wrong."""
    columns = policy_columns(options.policies)
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        selected, setting = prepare(options, Path(scratch))
        compared = twin_agreement.run(selected, columns, options.repeat, setting, show_progress)
    typical = twin_agreement.medians(compared)
    shown = [twin_agreement.cells(typical), twin_agreement.summary_cells(typical)]
    publish(options, shown, twin_agreement.to_json(compared), twin_agreement.NOTE)
    exit_if(any(c.error and not c.real for c in compared))


#: By option, the experiment that runs instead of the comparison of policies.
EXPERIMENTS: Mapping[str, Callable[[Options], None]] = {
    "memory_tight": run_memory_tight,
    "least_memory": run_least_memory,
    "kernels": run_kernels,
    "elementwise": run_elementwise,
    "soak": run_soak,
    "chaos": run_chaos,
    "failover": run_failover,
    "restart": run_restart,
    "back_after": run_back_after,
    "journal": run_journal,
    "cancel": run_cancellation,
    "transfer": run_transfer,
    "pages": run_pages,
    "observer": run_observer,
    "simulated": run_simulated,
    "first_task": run_first_task,
    "public": run_public,
    "small": run_small,
    "tiny": run_tiny,
    "tpch": run_tpch,
    "programs": run_programs,
    "planning": run_planning,
    "twin": run_twin,
}
