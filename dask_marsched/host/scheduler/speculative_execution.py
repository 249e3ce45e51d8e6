"""Starts a second run of a straggler (speculative execution); the first result wins.

The second worker gets the same message with its own run id. If it finishes first, it replaces the
task's processing worker just before Dask handles the result. The slower run is cancelled, and
interrupted if that option is on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from dask.typing import Key
from distributed.metrics import time
from distributed.scheduler import Scheduler, TaskState, WorkerState

from dask_marsched.host.contract import demand, misfits_of_attributes, misfits_of_function
from dask_marsched.host.graph.function_effects import called_functions, describe_effects
from dask_marsched.host.graph.task_effects import Effects, effects
from dask_marsched.host.scheduler.lost_results import TOPIC
from dask_marsched.host.scheduler.periodic_checks import PeriodicCheck, is_silent
from dask_marsched.host.scheduler.snapshot import restricted
from dask_marsched.host.stimuli import SECOND_RUN
from dask_marsched.policies.stragglers import Durations, Running, choose_second_runs

_METHODS = {
    "stimulus_task_finished": ("worker", "stimulus_id", "key", "run_id"),
    "_task_to_msg": ("ts",),
    "worker_send": ("worker", "msg"),
}
_WORKER_ATTRIBUTES = ("add_to_processing", "remove_from_processing", "executing")


def misfits(scheduler: Any) -> list[str]:
    """Return what speculative execution does not find as expected; empty if all is well."""
    found = misfits_of_attributes("WorkerState", WorkerState, _WORKER_ATTRIBUTES)
    for name, parameters in _METHODS.items():
        found += misfits_of_function("Scheduler", scheduler, name, parameters)
    return found


class _SecondRun(NamedTuple):
    worker: WorkerState
    run_id: int


class SpeculativeExecution(PeriodicCheck):
    """Runs stragglers a second time; counts runs ``begun`` and ``won``."""

    interval = 0.5
    hook = "second_runs"

    def __init__(self, scheduler: Scheduler, caught: Callable[[str, Exception], None]) -> None:
        super().__init__(scheduler, caught)
        self.durations = Durations()
        self.begun = self.won = 0
        self._seconds: dict[TaskState, _SecondRun] = {}

    def install(self) -> None:
        """Begin; raise a RuntimeError if this version of distributed does not fit."""
        demand(misfits(self.scheduler), "stragglers are not run a second time")
        self.scheduler.stimulus_task_finished = self._task_finished
        super().install()

    def uninstall(self) -> None:
        """Restore the scheduler. Idempotent."""
        super().uninstall()
        vars(self.scheduler).pop("stimulus_task_finished", None)
        for ts in list(self._seconds):
            self.left(ts)

    def finished(self, ts: TaskState, seconds: float) -> None:
        """Record the duration of an execution."""
        self.durations.observe(ts.prefix.name, seconds)

    def left(self, ts: TaskState) -> None:
        """Record that a task is no longer processing, for whatever reason."""
        second = self._seconds.pop(ts, None)
        if second is not None:
            self._free(second.worker, ts.key)

    def worker_left(self, ws_address: str) -> None:
        """Record that a worker was removed."""
        for ts, second in list(self._seconds.items()):
            if second.worker.address == ws_address:
                del self._seconds[ts]

    def goes_on(self) -> bool:
        """Return whether any task is processed."""
        return any(ws.processing for ws in self.scheduler.workers.values())

    def check(self) -> None:
        """Begin second runs of stragglers on idle workers."""
        s = self.scheduler
        if s.queued:
            return  # idle workers have other work to come
        now = time()
        taken = {second.worker for second in self._seconds.values()}
        idle = [ws for ws in self.idle_workers(now) if ws not in taken]
        if not idle:
            return
        for chosen in choose_second_runs(self._running(now), self.durations, idle):
            self._begin(*chosen)

    def workers_of(self, tasks: Iterable[TaskState]) -> set[WorkerState]:
        """Return the workers on which tasks run a second time, with their inputs."""
        if not self._seconds:
            return set()
        return {self._seconds[ts].worker for ts in tasks if ts in self._seconds}

    def _running(self, now: float) -> Iterator[Running[TaskState, WorkerState]]:
        for ws in self.scheduler.workers.values():
            silent = now - ws.last_seen
            for ts in ws.processing:
                # `executing` is as of the worker's last heartbeat.
                seconds = ws.executing.get(ts)
                if seconds is None and not is_silent(ws, now):
                    continue
                if ts not in self._seconds and may_run_twice(ts):
                    yield Running(ts, ws, ts.prefix.name, (seconds or 0.0) + silent)

    def _begin(self, ts: TaskState, ws: WorkerState, reason: str) -> None:
        s = self.scheduler
        stealing = s.extensions.get("stealing")
        if stealing is not None:
            stealing.remove_key_from_stealable(ts)
        first = ts.run_id
        message = s._task_to_msg(ts)  # sets a new run id
        assert ts.run_id is not None
        self._seconds[ts] = _SecondRun(ws, ts.run_id)
        ts.run_id = first
        self.begun += 1
        s.worker_send(ws.address, message)
        assert ts.processing_on is not None
        s.log_event(
            TOPIC,
            {
                "action": "second-run",
                "key": str(ts.key),
                "worker": ts.processing_on.address,
                "second": ws.address,
                "why": reason,
                "time": time(),
            },
        )

    def _task_finished(
        self, worker: str, stimulus_id: str, key: Key, run_id: int, **kwargs: Any
    ) -> Any:
        s = self.scheduler
        ts = s.tasks.get(key)
        second = self._seconds.get(ts) if ts is not None else None
        if second is not None and second.run_id == run_id and ts.state == "processing":
            del self._seconds[ts]
            self._replace_first(ts, second)
        return type(s).stimulus_task_finished(
            s, worker=worker, stimulus_id=stimulus_id, key=key, run_id=run_id, **kwargs
        )

    def _replace_first(self, ts: TaskState, second: _SecondRun) -> None:
        first = ts.processing_on
        assert first is not None
        first.remove_from_processing(ts)
        ts.processing_on = second.worker
        second.worker.add_to_processing(ts)
        ts.run_id = second.run_id
        self.scheduler.check_idle_saturated(first)
        self._free(first, ts.key)
        self.won += 1

    def _free(self, ws: WorkerState, key: Key) -> None:
        if ws.address in self.scheduler.stream_comms:
            stimulus_id = f"{SECOND_RUN}-{time()}"
            message = {"op": "free-keys", "keys": [key], "stimulus_id": stimulus_id}
            self.scheduler.worker_send(ws.address, message)


def may_run_twice(ts: TaskState) -> bool:
    """Return whether two simultaneous runs of a task do no harm.

    True for tasks that only compute or read, as far as their code shows, and for those annotated
    with ``pure=True``. False for tasks with side effects, restrictions or a part in a shuffle.
    """
    if restricted(ts) or effects(ts.run_spec, ts.annotations) is Effects.UNKNOWN:
        return False
    for function in called_functions(ts.run_spec):
        module = getattr(function, "__module__", None) or ""
        if module.startswith("distributed.shuffle") or any(describe_effects(function)):
            return False
    return True
