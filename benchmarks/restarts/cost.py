"""Measures what a journal costs while nothing fails, and how soon a large graph goes on."""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.restarts.executions import forget_first_tasks, read_first_tasks
from benchmarks.restarts.processes import ClusterOfProcesses
from benchmarks.restarts.programs import map_numbers
from benchmarks.scheduler.first_task import SHAPES, side_for
from dask_marsched import Client, status
from dask_marsched.bench.cluster import tasks_known, warm_up
from dask_marsched.bench.metrics import digest, geometric_mean, median
from dask_marsched.bench.probes import PssSampler
from dask_marsched.bench.workloads import Parameters, Workload

TINY = 10_000
#: Arrivals of each graph, with a journal and without: one takes 20 to 150 ms, and varies by half.
ARRIVALS = 25
#: Seconds after which a large graph does not arrive again, if it has at least five times.
_ENOUGH = 30.0
#: Bars, as ratios to no journal: wall time of workloads and of tiny tasks, first task sent, memory.
BARS = (1.02, 1.05, 1.05, 1.10)


@dataclass(frozen=True)
class JournalRun:
    """A program on a cluster whose scheduler keeps a journal, or none.

    Attributes
    ----------
    seconds
        From handing it in until the results are there.
    pss
        Peak of the scheduler's, bytes.
    written
        Bytes that the journal took for it.
    """

    program: str
    journal: bool
    seconds: float
    pss: int
    tasks: int
    written: int
    digest: str


@dataclass(frozen=True)
class FirstTask:
    """A graph that arrived at a scheduler with a journal, or without.

    Attributes
    ----------
    seconds
        From handing it in until a task was sent.
    """

    program: str
    journal: bool
    seconds: float


@dataclass(frozen=True)
class Return:
    """A scheduler that was killed in a large graph.

    Attributes
    ----------
    arrival
        Seconds from handing in the graph to the first task sent.
    own
        Seconds from the start of the new process to the start of the plugin: Python's and Dask's.
    back
        Seconds from there to the first task that finished.
    """

    program: str
    tasks: int
    arrival: float
    own: float
    back: float


@contextlib.contextmanager
def _cluster(journal: bool, workers: int) -> Iterator[tuple[ClusterOfProcesses, Client]]:
    with (
        tempfile.TemporaryDirectory(prefix="restarts-") as directory,
        ClusterOfProcesses(Path(directory), workers, journal=journal) as cluster,
        Client(cluster.address, timeout=60, set_as_default=False) as client,
    ):
        client.wait_for_workers(workers, timeout=60)
        yield cluster, client


def _map_tiny(client: Client) -> list[Any]:
    return map_numbers(client, TINY)


def measure_cost(
    chosen: Sequence[Workload],
    parameters: Parameters,
    repeat: int,
    workers: int,
    progress: Callable[[JournalRun], None] = lambda _: None,
) -> tuple[list[JournalRun], list[FirstTask]]:
    """Run programs with and without a journal by turns, after one run not counted.

    First tasks are timed apart, on graphs that are dropped once a task was sent.
    """
    programs: dict[str, Callable[[Client], list[Any]]] = {f"map {TINY:,}": _map_tiny}
    for workload in chosen:
        programs[workload.name] = lambda client, workload=workload: client.compute(  # type: ignore[misc]  # no type can be given to its default
            list(workload.build(parameters))
        )
    runs, first_tasks = [], []
    with contextlib.ExitStack() as stack:
        pairs = [stack.enter_context(_cluster(journal, workers)) for journal in (False, True)]
        for _, client in pairs:
            client.run(warm_up, tuple(chosen))
            _wait_until_forgotten(client)
        for name, program in programs.items():
            for repetition in range(-1, repeat):
                for journal in _by_turns(repetition):
                    found = _measure(name, program, *pairs[journal], journal)
                    if repetition >= 0:
                        runs.append(found)
                        progress(found)
            began = time.monotonic()
            for arrival in range(ARRIVALS):
                if arrival >= 5 and time.monotonic() - began > _ENOUGH:
                    break
                for journal in _by_turns(arrival):
                    seconds = _time_first_task(program, pairs[journal][1])
                    first_tasks.append(FirstTask(name, journal, seconds))
    return runs, first_tasks


def _by_turns(repetition: int) -> tuple[bool, ...]:
    return (True, False) if repetition % 2 else (False, True)


def _measure(
    name: str,
    program: Callable[[Client], list[Any]],
    cluster: ClusterOfProcesses,
    client: Client,
    journal: bool,
) -> JournalRun:
    before = _written(client) if journal else 0
    # distributed's own scheduler of the memory's probes is in this process, the other is not.
    with PssSampler([cluster.scheduler.pid], interval=0.2) as sampler:
        began = time.time()
        futures = program(client)
        results = client.gather(futures)  # type: ignore[no-untyped-call]  # untyped there
        seconds = time.time() - began
    *_, tasks = client.run_on_scheduler(read_first_tasks)  # type: ignore[no-untyped-call]  # untyped there
    del futures
    _wait_until_forgotten(client)
    written = _written(client) - before if journal else 0
    return JournalRun(name, journal, seconds, sampler.peak, tasks, written, digest(results))


def _time_first_task(program: Callable[[Client], list[Any]], client: Client) -> float:
    began = time.time()
    futures = program(client)
    first = 0.0
    while not first:
        _, first, *_ = client.run_on_scheduler(read_first_tasks)  # type: ignore[no-untyped-call]  # untyped there
        time.sleep(0.01)
    del futures
    _wait_until_forgotten(client)
    return first - began


def _wait_until_forgotten(client: Client) -> None:
    while client.run_on_scheduler(tasks_known):  # type: ignore[no-untyped-call]  # untyped there
        time.sleep(0.05)
    client.run_on_scheduler(forget_first_tasks)  # type: ignore[no-untyped-call]  # untyped there


def _written(client: Client) -> int:
    return int(status(client).details["journal"]["bytes_written"])


def measure_return(
    sizes: Sequence[int], workers: int, progress: Callable[[Return], None] = lambda _: None
) -> list[Return]:
    """Kill the scheduler once the first task of a large graph has finished."""
    found = []
    for tasks in sizes:
        for name in ("map", *SHAPES):
            with _cluster(True, workers) as (cluster, client):
                found.append(_return(name, tasks, cluster, client))
                progress(found[-1])
    return found


def _return(name: str, tasks: int, cluster: ClusterOfProcesses, client: Client) -> Return:
    lazy = None if name == "map" else SHAPES[name](side_for(name, tasks))
    began = time.time()
    futures = map_numbers(client, tasks) if lazy is None else client.compute([lazy])  # type: ignore[no-untyped-call]  # untyped there
    _, first, _ = _first_tasks(client, futures)
    known = client.run_on_scheduler(tasks_known)  # type: ignore[no-untyped-call]  # untyped there
    cluster.kill_scheduler()
    again = time.time()
    cluster.start_scheduler()
    made, _, finished = _first_tasks(client, futures)
    return Return(name, known, first - began, made - again, finished - made)


def _first_tasks(client: Client, futures: Sequence[Any]) -> tuple[float, float, float]:
    """Wait for a result; return when the plugin was made, a task sent and one finished.

    The last is NaN where nothing was left to run.
    """
    while True:
        with contextlib.suppress(OSError):  # the scheduler is away
            made, first, finished, _ = client.run_on_scheduler(read_first_tasks)  # type: ignore[no-untyped-call]  # untyped there
            if finished:
                return made, first, finished
            if all(future.done() for future in futures):
                client.gather(futures)  # type: ignore[no-untyped-call]  # raises what failed; untyped there
                return made, first, math.nan
        time.sleep(0.01)


def cost_cells(runs: Sequence[JournalRun], first_tasks: Sequence[FirstTask]) -> list[list[str]]:
    """Return the table of medians, and of their ratios to those without a journal."""
    head = ["program", "tasks", "wall, s", "journal", "x", "first task, ms", "journal", "x"]
    table = [[*head, "scheduler PSS, MiB", "journal", "x", "bytes per task", "same"]]
    ratios: list[list[float]] = [[], [], []]
    for name in dict.fromkeys(r.program for r in runs):
        own = [[r for r in runs if (r.program, r.journal) == (name, j)] for j in (False, True)]
        first = [
            [f.seconds for f in first_tasks if (f.program, f.journal) == (name, j)]
            for j in (False, True)
        ]
        row = [name, str(own[0][0].tasks)]
        columns: tuple[tuple[float, list[list[float]]], ...] = (
            (1, [[r.seconds for r in side] for side in own]),
            (1e3, first),
            (2**-20, [[r.pss for r in side] for side in own]),
        )
        for position, (scale, sides) in enumerate(columns):
            plain, kept = (median(side) or 0.0 for side in sides)
            ratios[position].append(kept / plain)
            row += [f"{scale * plain:.2f}", f"{scale * kept:.2f}", f"{kept / plain:.3f}"]
        written = median(r.written / max(r.tasks, 1) for r in own[1]) or 0.0
        same = len({r.digest for side in own for r in side}) == 1
        table.append([*row, f"{written:.0f}", "yes" if same else "NO"])
    means = [f"{geometric_mean(values) or 0.0:.3f}" for values in ratios]
    table.append(["geometric mean", *["", "", "", means[0], "", "", means[1]], "", "", means[2]])
    table[-1] += ["", ""]
    return table


def return_cells(found: Sequence[Return]) -> list[list[str]]:
    """Return the table of returns."""
    table = [["graph", "tasks", "arrival, s", "process' own start, s", "first task, s"]]
    for r in found:
        seconds = (f"{value:.2f}" for value in (r.arrival, r.own, r.back))
        table.append([r.program, str(r.tasks), *seconds])
    return table
