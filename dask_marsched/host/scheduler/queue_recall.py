"""Recalls tiny tasks that wait on a worker behind a slow one, and sends them to idle workers.

distributed's work stealing never moves tasks of less than 5 ms, as it never queues many of them. A
worker that has stalled cannot answer: its tasks run elsewhere if a second run would do no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any

from distributed.metrics import time
from distributed.scheduler import Scheduler, TaskState, WorkerState

from dask_marsched.host.contract import (
    NotApplicable,
    demand,
    misfits_of_attributes,
    misfits_of_function,
)
from dask_marsched.host.scheduler.periodic_checks import PeriodicCheck, is_silent
from dask_marsched.host.scheduler.snapshot import restricted
from dask_marsched.host.scheduler.speculative_execution import may_run_twice
from dask_marsched.policies.tiny_tasks import SHORT

#: Most bytes of inputs of a task that is recalled, and most tasks recalled from a worker at a time.
_MOST_BYTES, _MOST_TASKS = 2**20, 1000
#: Seconds for which a worker that was sent recalled tasks is not taken for stuck: it may still
#: fetch their inputs, and they would wander on from worker to worker.
_SETTLE = 1.0


def misfits(scheduler: Any) -> list[str]:
    """Return what the recall does not find as expected; empty if all is well."""
    stealing = scheduler.extensions["stealing"]
    return [
        *misfits_of_function("stealing", stealing, "move_task_request", ("ts", "victim", "thief")),
        *misfits_of_function("stealing", stealing, "_remove_from_in_flight", ("ts",)),
        *misfits_of_function("stealing", stealing, "remove_key_from_stealable", ("ts",)),
        *misfits_of_function("Scheduler", scheduler, "send_task_to_worker", ("worker", "ts")),
        *misfits_of_function("Scheduler", scheduler, "worker_send", ("worker", "msg")),
        *misfits_of_function("Scheduler", scheduler, "check_idle_saturated", ("ws",)),
        *misfits_of_attributes("stealing", stealing, ("in_flight",)),
    ]


class QueueRecall(PeriodicCheck):
    """Looks for stuck queues while tasks are processed; counts the tasks ``recalled``."""

    interval = 0.1  # a queue that has not moved from one check to the next is stuck
    hook = "recall"

    def __init__(self, scheduler: Scheduler, caught: Callable[[str, Exception], None]) -> None:
        super().__init__(scheduler, caught)
        self.recalled = 0
        self._seen: dict[WorkerState, int] = {}
        #: By address: when a worker was last sent recalled tasks.
        self._given: dict[str, float] = {}

    def install(self) -> None:
        """Begin; raise NotApplicable without work stealing, RuntimeError on a misfit."""
        if "stealing" not in self.scheduler.extensions:
            raise NotApplicable("the user has switched off work stealing")
        demand(misfits(self.scheduler), "tiny tasks stay where they were sent")
        super().install()

    def goes_on(self) -> bool:
        """Return whether any queue was seen."""
        return bool(self._seen)

    def check(self) -> None:
        """Move the queues that have not moved since the last look to idle workers."""
        s = self.scheduler
        before = self._seen
        self._seen = {
            ws: len(ws.processing)
            for ws in s.workers.values()
            if len(ws.processing) - len(ws.long_running) > ws.nthreads
        }
        now = time()
        self._given = {who: then for who, then in self._given.items() if now - then < _SETTLE}
        stuck = [
            ws
            for ws, length in self._seen.items()
            if before.get(ws) == length and ws.address not in self._given
        ]
        if not stuck or s.queued:
            return  # idle workers have other work to come
        idle = self.idle_workers(now)
        if not idle:
            return
        for ws in stuck:
            stalled = is_silent(ws, now)
            waiting = sorted(self._waiting(ws), key=lambda ts: ts.priority or ())
            for ts, thief in zip(islice(waiting, _MOST_TASKS), cycle(idle), strict=False):
                self._given[thief.address] = now
                if not stalled:
                    self._ask(ts, ws, thief)
                elif may_run_twice(ts):
                    self._move(ts, ws, thief)

    def _ask(self, ts: TaskState, ws: WorkerState, thief: WorkerState) -> None:
        stealing = self.scheduler.extensions["stealing"]
        if ts not in stealing.in_flight:
            stealing.move_task_request(ts, ws, thief)
            self.recalled += 1

    def _move(self, ts: TaskState, ws: WorkerState, thief: WorkerState) -> None:
        """Run a task elsewhere without an answer, which is ignored if it comes."""
        s = self.scheduler
        stealing = s.extensions["stealing"]
        stealing._remove_from_in_flight(ts)
        stealing.remove_key_from_stealable(ts)
        ws.remove_from_processing(ts)
        ts.processing_on = thief
        thief.add_to_processing(ts)
        s.send_task_to_worker(thief.address, ts)
        stimulus_id = f"marsched-recall-{time()}"
        free = {"op": "free-keys", "keys": [ts.key], "stimulus_id": stimulus_id}
        s.worker_send(ws.address, free)
        s.check_idle_saturated(ws)
        s.check_idle_saturated(thief)
        self.recalled += 1

    def _waiting(self, ws: WorkerState) -> Iterator[TaskState]:
        """Yield the tiny tasks of a worker that may run anywhere; some of them may be running."""
        for ts in ws.processing:
            if (
                ts not in ws.long_running
                and ts.prefix.duration_average < SHORT  # unknown: below zero
                and not restricted(ts)
                and sum(dts.get_nbytes() for dts in ts.dependencies) <= _MOST_BYTES
            ):
                yield ts
