"""Kills a worker in the middle of a run, and counts the tasks that are computed again."""

from __future__ import annotations

import os
import signal
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin


class Killer(SchedulerPlugin):
    """Kills the worker with most results, by its process id, once half of the tasks have run."""

    name = "bench-killer"

    def __init__(self, pids: dict[str, int]) -> None:
        self.pids = pids
        self.scheduler: Any = None
        self.total = 0  # 0 before the first graph
        self.ran = self.again = self.lost = 0

    def update_graph(self, scheduler: Any, *, tasks: list[Any], **kwargs: Any) -> None:
        """Count tasks."""
        self.scheduler = scheduler
        self.ran = self.again = self.lost = 0
        self.total = len(tasks)

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Kill in the middle of the run; count tasks sent although they had a result."""
        if start == "processing" and finish == "memory":
            self.ran += 1
            if self.pids and 2 * self.ran >= self.total > 0:
                self.kill()
        elif finish == "processing" and self.scheduler.tasks[key].nbytes >= 0:
            self.again += 1

    def kill(self) -> None:
        """Kill a worker, once."""
        victim = max(self.scheduler.workers.values(), key=lambda ws: len(ws.has_what))
        self.lost = sum(len(ts.who_has) == 1 for ts in victim.has_what)
        os.kill(self.pids[victim.address], signal.SIGKILL)
        self.pids = {}
