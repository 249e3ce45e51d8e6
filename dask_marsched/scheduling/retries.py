"""Decides which failed operands are retried (only if known to compute or read), and where."""

from __future__ import annotations

import math
from typing import Any

from distributed.scheduler import TaskState, WorkerState

from dask_marsched.host.graph.task_effects import Effects, effects
from dask_marsched.host.scheduler.snapshot import input_bytes_on
from dask_marsched.policies.retries import RetryRule


class Retries:
    """Remembers the operands that failed with infrastructure errors, and where."""

    def __init__(self, scheduler: Any, rule: RetryRule) -> None:
        self.scheduler = scheduler
        self.rule = rule
        self._failed_on: dict[TaskState, list[str]] = {}

    def wait(self, ts: TaskState, worker: str, error: str) -> float:
        """Record a failure; return after how many seconds to retry, infinity for never.

        `worker` is an address, `error` the exception's ``repr``.
        """
        before = self._failed_on.get(ts, ())
        seconds = self.rule.wait(error, len(before))
        if math.isinf(seconds) or effects(ts.run_spec, ts.annotations) is Effects.UNKNOWN:
            return math.inf
        self._failed_on[ts] = [*before, worker]
        return seconds

    def elsewhere(self, ts: TaskState) -> WorkerState | None:
        """Return the worker for a retry; None if it has not failed, or has failed on all.

        Of the workers on which it has not failed, it has most input bytes, then least load.
        """
        failed_on = self._failed_on.get(ts)
        if failed_on is None:
            return None
        others = [ws for ws in self.scheduler.running if ws.address not in failed_on]

        def preference(ws: WorkerState) -> tuple[float, float, str]:
            load = len(ws.processing) / (ws.nthreads or 1)
            return -input_bytes_on(ts, ws)[0], load, ws.address

        return min(others, key=preference, default=None)

    def settled(self, ts: TaskState) -> None:
        """Forget an operand that has a result or will not run again."""
        self._failed_on.pop(ts, None)

    def clear(self) -> None:
        """Forget all operands."""
        self._failed_on.clear()
