"""Runs workloads in the digital twin, with more workers than this machine could hold."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dask_marsched.bench.metrics import MOVING, SMALLEST_RATIO, STOCK, geometric_mean
from dask_marsched.bench.report import MIB, Cells
from dask_marsched.bench.workloads import Parameters, Workload
from dask_marsched.simulation import simulate

#: The size of a workload is made for so many workers; for more it grows in proportion.
_MADE_FOR = 4
AXES = ("moved", "between_hosts", "memory", "managed", "seconds")


@dataclass(frozen=True)
class Simulated:
    """A workload under a policy in the twin.

    Attributes
    ----------
    workload, policy : str
        What ran, and under what.
    workers, tasks : int
        On how many workers, and how many tasks.
    moved, between_hosts : int
        Bytes moved between workers, and between hosts.
    memory : int
        Peak of the bytes of results that the workers held together.
    managed : int
        The same as the scheduler knew it: it learns of a result after a worker has it, and lets
        it go before the worker does. What a dashboard shows, and `dask marsched bench` calls so.
    seconds : float
        Makespan in virtual time.
    error : str or None
        Why it could not be simulated.
    """

    workload: str
    policy: str
    workers: int
    tasks: int = 0
    moved: int = 0
    between_hosts: int = 0
    memory: int = 0
    managed: int = 0
    seconds: float = 0.0
    error: str | None = None


def run(
    chosen: Sequence[Workload],
    policies: Sequence[str],
    workers: Sequence[int],
    parameters: Parameters,
    *,
    workers_per_host: int = 1,
    cores: float | None = None,
    threads: int = 1,
    progress: Callable[[Simulated], None] = lambda _: None,
) -> list[Simulated]:
    """Simulate workloads under each policy and with each number of workers.

    Parameters
    ----------
    chosen, policies, workers
        What to simulate.
    parameters
        Their size with 4 workers; it grows with the number of workers.
    workers_per_host
        Workers of the same host.
    cores
        Cores of a host, None for as many as its workers have threads.
    threads
        Threads of a worker.
    """
    found = []
    for count in workers:
        scaled = replace(parameters, size=parameters.size * count / _MADE_FOR)
        hosts = 1 if cores is not None else max(1, count // workers_per_host)
        for workload in chosen:
            for policy in policies:
                gc.collect()
                one = Simulated(workload.name, policy, count)
                try:
                    report = simulate(
                        list(workload.build(scaled)), workers=count, hosts=hosts, cores=cores,
                        threads=threads, policy=policy, timeline=False,
                    )  # fmt: skip
                except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
                    reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                    one = replace(one, error=reason)
                else:
                    one = replace(
                        one,
                        tasks=report.tasks,
                        moved=report.bytes_moved,
                        between_hosts=report.bytes_between_hosts,
                        memory=report.peak_memory,
                        managed=report.peak_managed,
                        seconds=report.makespan,
                    )
                progress(one)
                found.append(one)
    return found


def ratios(found: Sequence[Simulated]) -> dict[tuple[int, str, str], dict[str, float | None]]:
    """Return the ratios to stock by number of workers, policy and workload.

    Bytes count where more than 5 MiB move under stock; a ratio below 0.01 counts as 0.01.
    """
    stock = {(s.workers, s.workload): s for s in found if s.policy == STOCK and not s.error}
    out: dict[tuple[int, str, str], dict[str, float | None]] = {}
    for s in found:
        base = stock.get((s.workers, s.workload))
        if s.policy == STOCK or s.error or base is None:
            continue
        out[s.workers, s.policy, s.workload] = {
            axis: max(getattr(s, axis) / value, SMALLEST_RATIO)
            if (value := getattr(base, axis)) > (MOVING if isinstance(value, int) else 0)
            else None
            for axis in AXES
        }
    return out


def cells(found: Sequence[Simulated]) -> Cells:
    """Return the table of workloads, its head first."""
    compared = ratios(found)
    rows = [
        ["workers", "workload", "policy", "tasks", "moved MiB", "x", "between hosts MiB", "x",
         "memory MiB", "x", "managed MiB", "x", "seconds", "x"]
    ]  # fmt: skip
    for s in found:
        row = [str(s.workers), s.workload, s.policy]
        if s.error:
            rows.append([*row, s.error, *[""] * 10])
            continue
        x = compared.get((s.workers, s.policy, s.workload), dict.fromkeys(AXES))
        row.append(str(s.tasks))
        for axis in AXES:
            value = getattr(s, axis)
            row.append(f"{value:.2f}" if axis == "seconds" else f"{value / MIB:.0f}")
            ratio = x[axis]
            row.append("-" if ratio is None else f"{ratio:.2f}")
        rows.append(row)
    return rows


def summary_cells(found: Sequence[Simulated]) -> Cells:
    """Return the table of geometric means over the workloads that move more than 5 MiB."""
    compared = ratios(found)
    rows = [["workers", "policy", "axis", "workloads", "geomean x", "worst x", "of"]]
    for workers, policy in dict.fromkeys((w, p) for w, p, _ in compared):
        moving = {
            name: x
            for (w, p, name), x in compared.items()
            if (w, p) == (workers, policy) and x["moved"] is not None
        }
        for axis in AXES:
            values = {name: v for name, x in moving.items() if (v := x[axis]) is not None}
            if values:
                worst = max(values, key=values.__getitem__)
                mean = geometric_mean(values.values()) or 0.0
                rows.append(
                    [str(workers), policy, axis.replace("_", " "), str(len(values)),
                     f"{mean:.3f}", f"{values[worst]:.2f}", worst]
                )  # fmt: skip
    return rows
