"""Tracks the phases of a computation's operands on the scheduler, for `progress`."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterable
from itertools import islice
from typing import Any

from dask.typing import Key
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.metrics import time
from distributed.scheduler import TaskState

from dask_marsched.core.operand import State, state_of
from dask_marsched.policies.time_left import BusyThreads, Remaining, time_left

logger = logging.getLogger("dask_marsched")

#: The phases, of which each operand is in one.
PHASES = ("waiting", "ready", "running", "finished", "failed", "given up")
_WAITING, _READY, _RUNNING, _FINISHED, _FAILED, _GIVEN_UP = range(len(PHASES))
_PHASE_OF = {
    State.UNSCHEDULED: _WAITING,
    State.READY: _READY,
    State.FINISHED: _FINISHED,
    State.CACHED: _FINISHED,
    State.FREED: _FINISHED,
    State.FATAL: _FAILED,
    State.CANCELLED: _GIVEN_UP,
}
#: Operands collected in one step, a few milliseconds.
_STEP = 5_000
#: Kinds that are listed; the less frequent ones are summed up.
_MOST_KINDS = 20


class _Kind:
    """The operands with one key prefix."""

    __slots__ = ("counts", "done", "name", "prefix", "running", "seconds", "spent")

    def __init__(self, name: str, prefix: Any) -> None:
        self.name = name
        self.prefix = prefix
        self.counts = [0] * len(PHASES)
        self.done = 0
        self.seconds = 0.0
        self.running = 0
        self.spent = 0.0

    def mean(self) -> float | None:
        """Return the mean seconds of these operands, else of earlier ones, else None."""
        if self.done:
            return self.seconds / self.done
        before = self.prefix.duration_average
        return float(before) if before >= 0 else None

    def remaining(self) -> Remaining:
        left = self.counts[_WAITING] + self.counts[_READY]
        return Remaining(left, self.mean(), min(self.running, left), self.spent)


class ProgressTracker(SchedulerPlugin):
    """Tracks the operands that some results depend on, with or without `MarsSchedulerPlugin`.

    The results may be unknown to the scheduler yet. With `complete`, operands count that had a
    result at the start.
    """

    def __init__(self, scheduler: Any, keys: Iterable[Key], complete: bool = True) -> None:
        self.name = f"marsched-progress-{uuid.uuid4().hex}"
        self.scheduler = scheduler
        self.complete = complete
        self.status = "expected"
        self._wanted = dict.fromkeys(keys)
        self._open: set[Key] = set()
        self._kinds: list[_Kind] = []
        self._number: dict[str, int] = {}
        # By operand, the index of its kind and its phase, in one integer.
        self._of: dict[Key, int] = {}
        self._work = 0.0
        self._pace = BusyThreads()
        self._began = time()
        self._error: tuple[str, str] | None = None
        self._task: asyncio.Task[None] | None = None

    async def _collect(self) -> None:
        """Find all operands in steps, between which the event loop can run other callbacks."""
        tasks = self.scheduler.tasks
        stack = [tasks[key] for key in self._wanted if key in tasks]
        self._open = set(self._wanted)
        self._began = time()
        turn = 0
        while stack:
            ts = stack.pop()
            if ts.key in self._of:
                continue
            if ts.state == "forgotten":
                if ts.key in self._wanted:
                    self.status = "cancelled"
                continue
            if not self.complete and ts.who_has and ts.key not in self._wanted:
                continue
            self._take(ts)
            stack.extend(ts.dependencies)
            turn += 1
            if turn % _STEP == 0:
                await asyncio.sleep(0)
        if self.status == "collected":
            self.status = "running"
            self._settle()

    def _take(self, ts: TaskState) -> None:
        number = self._number.get(ts.prefix.name)
        if number is None:
            number = self._number[ts.prefix.name] = len(self._kinds)
            self._kinds.append(_Kind(ts.prefix.name, ts.prefix))
        phase = _PHASE_OF[state_of(ts.state, computed=ts.nbytes >= 0)]
        self._of[ts.key] = number * len(PHASES) + phase
        self._kinds[number].counts[phase] += 1
        self._came_to(ts.key, phase, ts)

    def transition(
        self, key: Key, start: str, finish: str, *args: Any, stimulus_id: str, **kwargs: Any
    ) -> None:
        """Update the phase of an operand."""
        code = self._of.get(key)
        if code is None:
            return
        ts = self.scheduler.tasks[key]
        number, before = divmod(code, len(PHASES))
        kind = self._kinds[number]
        phase = _PHASE_OF[state_of(finish, computed=start == "memory" or ts.nbytes >= 0)]
        if start == "processing" and finish == "memory":
            for part in kwargs.get("startstops") or ():
                if part["action"] == "compute":
                    seconds = max(0.0, part["stop"] - part["start"])
                    kind.done += 1
                    kind.seconds += seconds
                    self._work += seconds
        if phase != before:
            self._of[key] = code + phase - before
            kind.counts[before] -= 1
            kind.counts[phase] += 1
            self._came_to(key, phase, ts)
        if self.status == "running":
            self._settle()

    def _came_to(self, key: Key, phase: int, ts: TaskState) -> None:
        if key in self._wanted:
            if phase == _FINISHED:
                self._open.discard(key)
            else:
                self._open.add(key)
            if phase == _GIVEN_UP and self._error is None:
                self.status = "cancelled"
        if phase == _FAILED and self._error is None:
            cause = ts.exception_blame or ts
            self._error = (str(cause.key), str(cause.exception_text or "it failed"))
            self.status = "error"

    def _settle(self) -> None:
        if not self._open:
            self.status = "finished"

    def restart(self, scheduler: Any) -> None:
        """Note that all operands are gone."""
        if self.status in ("expected", "collected", "running"):
            self.status = "cancelled"

    def stop(self) -> None:
        """Stop tracking. Idempotent."""
        if self._task is not None:
            self._task.cancel()
        if self.name in self.scheduler.plugins:
            self.scheduler.remove_plugin(name=self.name)

    def look(self) -> dict[str, Any]:
        """Return the progress as plain values.

        Until ``status`` is ``running``, results are ``expected`` at the scheduler, and then
        ``collected`` (operands are being counted). ``seconds`` left is None with a ``reason``, and
        may be more if ``at_least``; ``spilled`` is bytes on the workers' disks.
        """
        if self.status == "expected" and all(k in self.scheduler.tasks for k in self._wanted):
            self.status = "collected"
            self._task = asyncio.ensure_future(self._collect())
            self._task.add_done_callback(_log_failure)
        now = time()
        running = self._count_running()
        spent = sum(kind.spent for kind in self._kinds)
        self._pace.observe(now, self._work + spent)
        threads = sum(ws.nthreads for ws in self.scheduler.running)
        left = time_left(
            [kind.remaining() for kind in self._kinds],
            threads,
            self._pace.mean(now, self._work + spent),
        )
        phases = [sum(kind.counts[i] for kind in self._kinds) for i in range(len(PHASES))]
        phases[_RUNNING] = min(running, phases[_READY])
        phases[_READY] -= phases[_RUNNING]
        return {
            "status": self.status,
            "phases": dict(zip(PHASES, phases, strict=True)),
            "kinds": self._kind_rows(),
            "seconds": left.seconds if self.status != "collected" else None,
            "at_least": left.at_least,
            "reason": left.reason,
            "threads": threads,
            "spilled": sum(map(_on_disk, self.scheduler.workers.values())),
            "elapsed": now - self._began,
            "error": None if self._error is None else list(self._error),
        }

    def _count_running(self) -> int:
        """Count running tasks: those in heartbeats and, for other threads, those sent first."""
        for kind in self._kinds:
            kind.running, kind.spent = 0, 0.0
        count = 0
        for ws in self.scheduler.workers.values():
            running_tasks = {
                ts: max(0.0, s) for ts, s in ws.executing.items() if ts in ws.processing
            }
            for ts in islice(ws.processing, ws.nthreads):
                if len(running_tasks) < ws.nthreads:
                    running_tasks.setdefault(ts, 0.0)
            for ts, seconds in running_tasks.items():
                code = self._of.get(ts.key)
                if code is not None:
                    kind = self._kinds[code // len(PHASES)]
                    kind.running += 1
                    kind.spent += seconds
                    count += 1
        return count

    def _kind_rows(self) -> list[dict[str, Any]]:
        kinds = sorted(self._kinds, key=lambda kind: -sum(kind.counts))
        rows = [_kind_row(kind.name, [kind]) for kind in kinds[:_MOST_KINDS]]
        if kinds[_MOST_KINDS:]:
            rows.append(_kind_row("others", kinds[_MOST_KINDS:]))
        return rows


def _kind_row(name: str, kinds: list[_Kind]) -> dict[str, Any]:
    return {
        "name": name,
        "total": sum(sum(kind.counts) for kind in kinds),
        "finished": sum(kind.counts[_FINISHED] for kind in kinds),
        "running": sum(kind.running for kind in kinds),
        "failed": sum(kind.counts[_FAILED] for kind in kinds),
    }


def _on_disk(ws: Any) -> int:
    spilled = (ws.metrics or {}).get("spilled_bytes") or {}
    return int(spilled.get("disk") or 0)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("progress cannot count the operands", exc_info=task.exception())


# -- for `Scheduler.feed`, which calls these on the scheduler ----------------------------------


def begin(scheduler: Any, keys: list[Key], complete: bool) -> ProgressTracker:
    """Start tracking."""
    tracker = ProgressTracker(scheduler, keys, complete)
    scheduler.add_plugin(tracker)
    return tracker


def look(scheduler: Any, tracker: ProgressTracker) -> dict[str, Any]:
    """Return the progress."""
    return tracker.look()


def end(scheduler: Any, tracker: ProgressTracker | None) -> None:
    """Stop tracking."""
    if tracker is not None:
        tracker.stop()
