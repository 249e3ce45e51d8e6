"""Measures the scheduler's time and memory up to the first task sent of a graph."""

from __future__ import annotations

import json
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any

from dask_marsched.bench.metrics import STOCK, median, ratio

BAR_SECONDS = 1.15  # of stock's
BAR_MEMORY = 1.20
STARTING = 60.0  # seconds for a process to come up
PER_TASK = 0.002  # seconds a task may take before the measurement has failed


@dataclass(frozen=True)
class Planning:
    """One graph planned by a fresh scheduler process.

    Attributes
    ----------
    policy : str
        Under what.
    asked : int
        Tasks asked for.
    repetition : int
        From 0.
    tasks : int or None
        Tasks that the scheduler held.
    seconds : float or None
        From the arrival of the graph at the scheduler to its first task sent.
    memory : int or None
        Growth of the scheduler's resident memory to its peak in that time, bytes.
    error : str or None
        Why it failed; the others are None then.
    """

    policy: str
    asked: int
    repetition: int
    tasks: int | None = None
    seconds: float | None = None
    memory: int | None = None
    error: str | None = None


def measure(policy: str, asked: int, repetition: int) -> Planning:
    """Plan one graph in processes of its own. A failure is a measurement too."""
    module = [sys.executable, "-m", "benchmarks.scheduler.planning_processes"]
    processes: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryFile("w+") as log:
        try:
            scheduler = _start([*module, "scheduler", policy], log, processes)
            address = _line(scheduler, STARTING)["address"]
            _start([*module, "load", address, str(asked)], log, processes)
            result = _line(scheduler, STARTING + PER_TASK * asked)
            return Planning(policy, asked, repetition, **result)
        except (TimeoutError, EOFError) as error:
            log.seek(0)
            last = (log.read().strip().splitlines() or ["no output"])[-1]
            return Planning(policy, asked, repetition, error=f"{error}; {last}"[:300])
        finally:
            for process in processes:
                process.send_signal(signal.SIGKILL)  # there is nothing to be saved in them
                process.communicate()


def run(
    policies: Sequence[str],
    sizes: Sequence[int],
    repeat: int,
    progress: Callable[[Planning], None] = lambda _: None,
) -> list[Planning]:
    """Measure policies in alternation, for each size in turn.

    Parameters
    ----------
    policies : sequence of str
        See `cluster.policy_plugin`.
    sizes : sequence of int
        Tasks of the graphs.
    repeat : int
        Repetitions.
    progress : callable
        Called with each measurement.
    """
    measured = []
    for asked in sizes:
        for repetition in range(repeat):
            order = policies if repetition % 2 == 0 else list(reversed(policies))
            for policy in order:
                measured.append(measure(policy, asked, repetition))
                progress(measured[-1])
    return measured


def cells(measured: Sequence[Planning]) -> list[list[str]]:
    """Return the table of medians and ratios to stock, its head first."""
    head = ["policy", "tasks", "seconds", "x", "us a task", "memory MiB", "x", "failed", "verdict"]
    table = [head]
    for asked in dict.fromkeys(p.asked for p in measured):
        policies = dict.fromkeys(p.policy for p in measured)
        table.extend(_row(measured, policy, asked) for policy in policies)
    return table


def ratios(measured: Sequence[Planning], policy: str, asked: int, field: str) -> list[float]:
    """Return the ratios to stock of the same repetition."""
    by = {(p.policy, p.repetition): getattr(p, field) for p in measured if p.asked == asked}
    found = [ratio(value, by.get((STOCK, i))) for (name, i), value in by.items() if name == policy]
    return [value for value in found if value is not None]


def _row(measured: Sequence[Planning], policy: str, asked: int) -> list[str]:
    own = [p for p in measured if p.policy == policy and p.asked == asked]
    tasks, seconds, memory = (median(getattr(p, f) for p in own) for f in _FIELDS)
    slower = median(ratios(measured, policy, asked, "seconds"))
    larger = median(ratios(measured, policy, asked, "memory"))
    failed = sum(p.error is not None for p in own)
    verdict = "-"
    if policy.partition("#")[0] != STOCK and slower is not None and larger is not None:
        met = slower <= BAR_SECONDS and larger <= BAR_MEMORY and not failed
        verdict = "met" if met else "not met"
    return [
        policy,
        _show(tasks, "{:.0f}"),
        _show(seconds, "{:.2f}"),
        _show(slower, "{:.2f}"),
        _show(1e6 * seconds / tasks if seconds and tasks else None, "{:.1f}"),
        _show(memory / 2**20 if memory is not None else None, "{:.0f}"),
        _show(larger, "{:.2f}"),
        str(failed),
        verdict,
    ]


_FIELDS = ("tasks", "seconds", "memory")


def _show(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _start(
    command: list[str], log: IO[str], processes: list[subprocess.Popen[str]]
) -> subprocess.Popen[str]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    processes.append(process)
    return process


def _line(process: subprocess.Popen[str], timeout: float) -> dict[str, Any]:
    """Read one line of JSON.

    Raises
    ------
    TimeoutError
        If none comes within ``timeout`` seconds.
    EOFError
        If the process ended.
    """
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(timeout):
            raise TimeoutError(f"nothing within {timeout:.0f} seconds")
    line = process.stdout.readline()
    if not line:
        raise EOFError("the scheduler ended early")
    answer: dict[str, Any] = json.loads(line)
    return answer
