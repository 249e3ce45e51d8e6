"""Running an operand a second time while it still runs: the first result wins.

Dask knows one worker only that processes a task. The second one gets the same message under a
number of its own; should it be the first to finish, it takes the other's place just before Dask
hears of the result. Whoever is not first is told that nobody wants it any more, which interrupts
it where that is on.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from dask.typing import Key
from distributed.metrics import time
from distributed.scheduler import Scheduler, TaskState, WorkerState

from dask_marsched.host.contract import demand
from dask_marsched.host.graph.function_effects import functions, read_function
from dask_marsched.host.graph.task_effects import Effects, effects
from dask_marsched.host.worker.interrupts import SECOND_RUN
from dask_marsched.policies.stragglers import Durations, Running, StragglerRule

#: Seconds between two looks.
_EVERY = 0.5
#: A worker that has not been heard of for so long may stand still, seconds.
_SILENT = 5.0
TOPIC = "marsched-failover"

_PARAMETERS = {
    "stimulus_task_finished": ("worker", "stimulus_id", "key", "run_id"),
    "_task_to_msg": ("ts",),
    "worker_send": ("worker", "msg"),
}


def misfits(scheduler: Any) -> list[str]:
    """Return what in a scheduler is not as second runs expect it; empty if all is well."""
    found = []
    for name, expected in _PARAMETERS.items():
        there = inspect.signature(getattr(scheduler, name, lambda: None)).parameters
        found += [f"Scheduler.{name} takes no {p!r}" for p in expected if p not in there]
    for name in ("add_to_processing", "remove_from_processing", "executing"):
        if not hasattr(WorkerState, name):
            found.append(f"WorkerState has no {name!r}")
    return found


class _Second(NamedTuple):
    """Where an operand runs a second time."""

    worker: WorkerState
    run_id: int


class SecondRuns:
    """Runs stragglers of a scheduler a second time.

    Parameters
    ----------
    scheduler
        The scheduler.
    rule
        Decides.
    caught
        Told of exceptions of ours: (where, exception).

    Attributes
    ----------
    begun, won : int
        Second runs, and those of them that were first to finish.
    """

    def __init__(
        self, scheduler: Scheduler, rule: StragglerRule, caught: Callable[[str, Exception], None]
    ) -> None:
        self.scheduler: Any = scheduler
        self.rule = rule
        self.durations = Durations()
        self.begun = self.won = 0
        self._caught = caught
        self._seconds: dict[TaskState, _Second] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._installed = False

    def install(self) -> None:
        """Listen to what workers finish.

        Raises
        ------
        RuntimeError
            This version of distributed is not as expected; nothing has been changed.
        """
        demand(misfits(self.scheduler), "stragglers are not run a second time")
        self.scheduler.stimulus_task_finished = self._task_finished
        self._installed = True

    def uninstall(self) -> None:
        """Restore the scheduler. Idempotent."""
        if not self._installed:
            return
        self._installed = False
        vars(self.scheduler).pop("stimulus_task_finished", None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for ts in list(self._seconds):
            self.left(ts)

    # -- what happens ----------------------------------------------------------------------

    def sent(self) -> None:
        """Take note that something was sent to a worker."""
        if self._installed and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_EVERY, self._look)

    def finished(self, ts: TaskState, seconds: float) -> None:
        """Take note of an execution, and how long it took."""
        self.durations.observe(ts.prefix.name, seconds)

    def left(self, ts: TaskState) -> None:
        """Take note that no worker is to run a task any more, for whatever reason."""
        second = self._seconds.pop(ts, None)
        if second is not None:
            self._free(second.worker, ts.key)

    def worker_lost(self, ws_address: str) -> None:
        """Take note that a worker is gone."""
        for ts, second in list(self._seconds.items()):
            if second.worker.address == ws_address:
                del self._seconds[ts]

    # -- looking ---------------------------------------------------------------------------

    def _look(self) -> None:
        self._timer = None
        try:
            self._begin_some()
        except Exception as error:
            self._caught("second_runs", error)
        if any(ws.processing for ws in self.scheduler.workers.values()):
            self.sent()

    def _begin_some(self) -> None:
        s = self.scheduler
        if s.queued or s.unrunnable:
            return  # there is better to do
        now = time()
        taken = {second.worker for second in self._seconds.values()}
        idle = [
            ws
            for ws in s.running
            if not ws.processing and ws not in taken and now - ws.last_seen < _SILENT
        ]
        if not idle:
            return
        idle.sort(key=lambda ws: (ws.nbytes, ws.address))
        for chosen in self.rule.choose(self._running(now), self.durations, idle):
            self._begin(chosen.operand, chosen.worker, chosen.reason)

    def _running(self, now: float) -> Iterator[Running[TaskState, WorkerState]]:
        for ws in self.scheduler.workers.values():
            silent = now - ws.last_seen
            for ts in ws.processing:
                # What a worker runs is known by its last heartbeat.
                seconds = ws.executing.get(ts)
                if seconds is None and silent < _SILENT:
                    continue
                if ts not in self._seconds and may_run_twice(ts):
                    yield Running(ts, ws, ts.prefix.name, (seconds or 0.0) + silent)

    def _begin(self, ts: TaskState, ws: WorkerState, reason: str) -> None:
        s = self.scheduler
        stealing = s.extensions.get("stealing")
        if stealing is not None:
            stealing.remove_key_from_stealable(ts)
        first = ts.run_id
        message = s._task_to_msg(ts)  # which gives it a new number
        assert ts.run_id is not None
        self._seconds[ts] = _Second(ws, ts.run_id)
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

    # -- who is first ----------------------------------------------------------------------

    def _task_finished(
        self, worker: str, stimulus_id: str, key: Key, run_id: int, **kwargs: Any
    ) -> Any:
        s = self.scheduler
        ts = s.tasks.get(key)
        second = self._seconds.get(ts) if ts is not None else None
        if second is not None and second.run_id == run_id and ts.state == "processing":
            del self._seconds[ts]
            self._takes_the_place(ts, second)
        return type(s).stimulus_task_finished(
            s, worker=worker, stimulus_id=stimulus_id, key=key, run_id=run_id, **kwargs
        )

    def _takes_the_place(self, ts: TaskState, second: _Second) -> None:
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
    """Whether it does no harm to run a task twice at the same time.

    One that computes or reads, as far as is known, or that its user has annotated by
    ``pure=True``; nothing that reaches out of itself, is bound to a place, or takes part in a
    shuffle.
    """
    bound = ts.worker_restrictions or ts.host_restrictions or ts.resource_restrictions
    if ts.actor or bound or effects(ts.run_spec, ts.annotations) is Effects.UNKNOWN:
        return False
    for function in functions(ts.run_spec):
        module = getattr(function, "__module__", None) or ""
        if module.startswith("distributed.shuffle") or any(read_function(function)):
            return False
    return True
