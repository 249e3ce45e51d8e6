"""Preloaded by schedulers and workers: notes which tasks run, and when a scheduler is at work."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from distributed import Scheduler, SchedulerPlugin, Worker, WorkerPlugin

_NAME = "bench-executions"


class Executions(WorkerPlugin):
    """Notes when a worker began and ended each task."""

    name = _NAME

    def __init__(self) -> None:
        self.begun: dict[Any, list[float]] = defaultdict(list)
        self.ended: dict[Any, list[float]] = defaultdict(list)

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        """Note the beginning or the end of a run."""
        if finish == "executing" and start in ("ready", "constrained"):
            self.begun[key].append(time.time())
        elif finish == "memory" and start in ("executing", "long-running"):
            self.ended[key].append(time.time())


class FirstTasks(SchedulerPlugin):
    """Notes when a scheduler sent its first task and heard of the first result; counts the sent."""

    name = _NAME

    def __init__(self) -> None:
        self.made = time.time()
        self.sent = self.finished = 0.0
        self.tasks = 0

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Note the first times."""
        if finish == "processing":
            self.sent = self.sent or time.time()
            self.tasks += 1
        elif start == "processing" and finish == "memory":
            self.finished = self.finished or time.time()


async def dask_setup(here: Scheduler | Worker) -> None:
    """Add the plugin."""
    if isinstance(here, Scheduler):
        here.add_plugin(FirstTasks())
    elif isinstance(here, Worker):
        await here.plugin_add(Executions())


def forget_executions(dask_worker: Worker) -> None:
    """Begin anew. Runs on the workers."""
    noted: Any = dask_worker.plugins[_NAME]
    noted.begun.clear()
    noted.ended.clear()


def read_executions(dask_worker: Worker) -> tuple[dict[Any, list[float]], dict[Any, list[float]]]:
    """Return the times of beginnings and ends by key. Runs on the workers."""
    noted: Any = dask_worker.plugins[_NAME]
    return dict(noted.begun), dict(noted.ended)


def forget_first_tasks(dask_scheduler: Scheduler) -> None:
    """Begin anew. Runs on the scheduler."""
    noted: Any = dask_scheduler.plugins[_NAME]
    noted.sent = noted.finished = 0.0
    noted.tasks = 0


def read_first_tasks(dask_scheduler: Scheduler) -> tuple[float, float, float, int]:
    """Return when the plugin was made, a task sent and one finished (0: never); how many sent."""
    noted: Any = dask_scheduler.plugins[_NAME]
    return noted.made, noted.sent, noted.finished, noted.tasks
