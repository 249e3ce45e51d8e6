"""A cluster for kills of the scheduler, with what undisturbed runs on it take and give."""

from __future__ import annotations

import contextlib
import gc
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from distributed import wait

from benchmarks.restarts.executions import (
    forget_executions,
    forget_first_tasks,
    read_executions,
    read_first_tasks,
)
from benchmarks.restarts.processes import ClusterOfProcesses
from benchmarks.restarts.programs import PROGRAMS
from dask_marsched import Client
from dask_marsched.bench.cluster import tasks_known
from dask_marsched.bench.metrics import digest

#: Seconds after which a run has hung, or a cluster is not there.
PATIENCE = 90.0


class Timing(NamedTuple):
    """An undisturbed run: seconds until its graph has arrived, its results are there and got."""

    arrival: float
    compute: float
    gather: float
    digest: str


class Rig:
    """A cluster with its client, and the undisturbed run of each program."""

    def __init__(self, workers: int) -> None:
        self._stack = contextlib.ExitStack()
        self.directory = Path(tempfile.mkdtemp(prefix="restarts-"))
        self.workers = workers
        self.timings: dict[str, Timing] = {}
        self.joining = 0.0

    def __enter__(self) -> Rig:
        self.cluster = ClusterOfProcesses(self.directory, self.workers)
        self._stack.enter_context(self.cluster)
        self.client = self._stack.enter_context(Client(self.cluster.address, timeout=PATIENCE))
        self.client.wait_for_workers(self.workers, timeout=PATIENCE)
        began = time.monotonic()
        joining = self.have_joined(self.cluster.start_workers(1))
        self.joining = time.monotonic() - began
        self.let_go(joining)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def have_joined(self, joining: Any) -> Any:
        """Wait for another worker.

        A nanny that talks to the scheduler at this moment ends, in stock Dask too; whoever runs it
        starts it again.
        """

        def is_there() -> bool:
            nonlocal joining
            if joining.poll() is not None:
                self.cluster.end(joining)
                joining = self.cluster.start_workers(1)
            return self._count() > self.workers

        _until(is_there, "a worker cannot join")
        return joining

    def check_workers(self) -> None:
        """Raise if a worker has not come back."""
        if (count := self._count()) != self.workers:
            raise RuntimeError(f"{count} of {self.workers} workers are there")

    def let_go(self, joining: Any) -> None:
        """End a worker that had joined."""
        self.cluster.end(joining)
        _until(lambda: self._count() == self.workers, "the worker that joined does not leave")

    def _count(self) -> int:
        return len(self.client.scheduler_info(n_workers=-1)["workers"])

    def calm(self) -> None:
        """Wait until the scheduler has no tasks, and forget which ran."""
        gc.collect()  # of futures in cycles
        _until(lambda: not self.client.run_on_scheduler(tasks_known), "tasks are left")
        self.client.run(forget_executions)

    def undisturbed(self, name: str) -> Timing:
        """Run a program twice, and return the times of the second run."""
        if name not in self.timings:
            for _ in range(2):
                held = PROGRAMS[name].prepare(self.client)
                self.calm_but(held)
                began = time.time()
                futures = PROGRAMS[name].start(self.client, held)
                wait(futures, timeout=PATIENCE)
                computed = time.time()
                results = self.client.gather(futures)
                gathered = time.time()
                first = self.client.run_on_scheduler(read_first_tasks)[1]
                del futures, held
                self.calm()
            self.timings[name] = Timing(
                first - began, computed - began, gathered - computed, digest(results)
            )
        return self.timings[name]

    def calm_but(self, held: Any) -> None:
        """Forget which tasks ran for what is held."""
        if held is None:
            self.calm()
        self.client.run(forget_executions)
        self.client.run_on_scheduler(forget_first_tasks)

    def executions(self) -> Mapping[Any, list[float]]:
        """Return when each task began, on whichever worker."""
        found: dict[Any, list[float]] = defaultdict(list)
        for begun, _ in self.client.run(read_executions).values():
            for key, times in begun.items():
                found[key] += times
        return {key: sorted(times) for key, times in found.items()}


def _until(done: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(otherwise)
        time.sleep(0.02)
