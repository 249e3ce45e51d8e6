"""Tracks which workers may have free slots, so that dispatch need not scan them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distributed.scheduler import Scheduler, WorkerState

from dask_marsched.policies.slots import SlotRule

#: With up to this many workers each dispatch scans all of them.
_FEW_WORKERS = 64
#: Seconds between two scans of more workers. A worker may also get a free thread without finishing
#: a task: by work stealing, or as a task secedes.
_SCAN_EVERY = 0.05
#: Busy workers per dispatch that may get a task which waits there for a thread.
_MOST_BUSY_WORKERS = 16


class FreeSlots:
    """Finds workers with a free thread, workers that just finished a task, and a few busy ones.

    A busy worker may get a task that waits for a thread. To scan a hundred workers for every
    result takes longer than most tasks run.
    """

    def __init__(
        self, scheduler: Scheduler, slots: SlotRule, seniority: Callable[[WorkerState], int]
    ) -> None:
        self.scheduler: Any = scheduler
        self.slots = slots
        self.seniority = seniority
        self.finished: dict[WorkerState, None] = {}
        self._free: set[WorkerState] = set()
        self._busy: list[WorkerState] = []
        self._turn = 0
        self._scanned_at = float("-inf")

    def has_free_slot(self, ws: WorkerState) -> bool:
        """Return whether a running worker takes another task of any kind."""
        return ws in self.scheduler.running and self.slots.has_free_slot(
            ws.nthreads, in_progress(ws)
        )

    def forget(self, ws: WorkerState) -> None:
        """Forget a worker that left, paused or retires."""
        self.finished.pop(ws, None)
        self._free.discard(ws)
        self._busy = []
        self._scanned_at = float("-inf")

    def dispatched(self) -> None:
        """Forget which workers have just finished a task."""
        self._free.update(self.finished)  # they may still have a free thread
        self.finished.clear()

    def candidates(self, now: float) -> set[WorkerState]:
        """Return the workers that may get tasks."""
        s = self.scheduler
        if (
            len(s.running) <= _FEW_WORKERS
            or not self.finished
            or not 0 <= now - self._scanned_at < _SCAN_EVERY
        ):
            self._scan()
            self._scanned_at = now
        else:
            self._free = {ws for ws in self._free if self.has_free_slot(ws)}
        found = {ws for ws in self.finished if ws in s.running} | self._free
        busy = self._busy
        if len(busy) > _MOST_BUSY_WORKERS:
            self._turn = (self._turn + _MOST_BUSY_WORKERS) % len(busy)
            busy = (busy + busy)[self._turn : self._turn + _MOST_BUSY_WORKERS]
        return found.union(filter(self._may_queue, busy))

    def _scan(self) -> None:
        self._free, self._busy = set(), []
        s = self.scheduler
        has_free_slot = self.slots.has_free_slot
        # A worker whose results are being adopted may still be in Dask's `idle_task_count`.
        idle = s.running if self.slots.shares_out_more else s.running & s.idle_task_count
        for ws in idle:
            if has_free_slot(ws.nthreads, in_progress(ws)):
                self._free.add(ws)
            elif self._may_queue(ws):
                self._busy.append(ws)
        if len(self._busy) > _MOST_BUSY_WORKERS:
            self._busy.sort(key=self.seniority)

    def _may_queue(self, ws: WorkerState) -> bool:
        s = self.scheduler
        return ws in s.idle_task_count or (
            ws in s.running and self.slots.shares_out(ws.nthreads, in_progress(ws))
        )


def in_progress(ws: WorkerState) -> int:
    """Return the number of tasks of a worker that need a thread."""
    return len(ws.processing) - len(ws.long_running)
