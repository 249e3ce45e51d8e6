"""Retries failed tasks after a delay, in which they stay in "processing": `DelayedRetries`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from dask.typing import Key
from distributed.metrics import time
from distributed.scheduler import Scheduler, TaskState, WorkerState


class DelayedRetries:
    """Replaces how a scheduler handles a task's failure, where `retry_after` says to retry it.

    It is given the task, the worker and the error as text, and returns seconds, or infinity to let
    the task fail. `host.scheduler.contract` checks what is touched here.
    """

    def __init__(
        self, scheduler: Scheduler, retry_after: Callable[[TaskState, str, str], float]
    ) -> None:
        self.scheduler: Any = scheduler
        self.retry_after = retry_after
        #: Until a task's retry: the timer, and the run that has failed.
        self._waiting: dict[TaskState, tuple[asyncio.TimerHandle, int]] = {}

    def install(self) -> None:
        """Replace the scheduler's handling of failures."""
        self.scheduler.stimulus_task_erred = self._task_erred

    def uninstall(self) -> None:
        """Restore the scheduler, and retry at once what waits."""
        vars(self.scheduler).pop("stimulus_task_erred", None)
        for ts, (timer, run_id) in list(self._waiting.items()):
            timer.cancel()
            self._retry(ts, run_id)

    def waiting(self) -> set[Key]:
        """Return the keys of the failed tasks that wait for a retry."""
        return {ts.key for ts in self._waiting}

    def _task_erred(
        self, worker: str, stimulus_id: str, key: Any, run_id: int, **kwargs: Any
    ) -> Any:
        s = self.scheduler
        ts = s.tasks.get(key)
        if ts is not None and ts.state == "processing" and ts.run_id == run_id:
            seconds = self.retry_after(ts, worker, kwargs.get("exception_text") or "")
            if math.isfinite(seconds):
                # The task stays in "processing" until then: Dask handles all events for it.
                loop = asyncio.get_running_loop()
                timer = loop.call_later(seconds, self._retry, ts, run_id)
                self._waiting.pop(ts, None)  # of a task of this key that is gone
                self._waiting[ts] = timer, run_id
                self._park(ts, s.workers[worker], stimulus_id)
                return {}, {}, {}
        return type(s).stimulus_task_erred(
            s, worker=worker, stimulus_id=stimulus_id, key=key, run_id=run_id, **kwargs
        )

    def _park(self, ts: TaskState, ws: WorkerState, stimulus_id: str) -> None:
        """Free the slot of a failed task, and exempt the task from stealing.

        Its worker would answer a steal request for it in a way that no scheduler expects.
        """
        s = self.scheduler
        if (stealing := s.extensions.get("stealing")) is not None:
            stealing._remove_from_in_flight(ts)
        if ts not in ws.long_running:
            s.handle_long_running(
                key=ts.key,
                worker=ws.address,
                run_id=ts.run_id,
                compute_duration=None,
                stimulus_id=stimulus_id,
            )

    def _retry(self, ts: TaskState, run_id: int) -> None:
        s = self.scheduler
        _, failed = self._waiting.get(ts, (None, None))
        if failed == run_id:  # else a later task of this key waits
            del self._waiting[ts]
        if s.tasks.get(ts.key) is ts and ts.state == "processing" and ts.run_id == run_id:
            stimulus_id = f"marsched-retry-{time()}"
            s.transitions({ts.key: "waiting"}, stimulus_id)
            s.stimulus_queue_slots_maybe_opened(stimulus_id=stimulus_id)
