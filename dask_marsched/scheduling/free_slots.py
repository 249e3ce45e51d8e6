"""Tracks which workers may have free slots, so that dispatch need not scan them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distributed.scheduler import Scheduler, WorkerState

from dask_marsched.policies.slots import SlotRule

#: Up to as many workers all are looked at each time.
_FEW = 64
#: Seconds after which all are looked at again where there are more. A worker may have got a free
#: thread without a result of it: by a steal, or as a running task stepped aside.
_ALL_EVERY = 0.05
#: As many workers without a free thread are looked at in turn for what may wait there.
_MOST_BUSY = 16


class FreeSlots:
    """Finds the workers with a free thread, or just done with something, or next in turn.

    Those whose threads are busy may have another wait for them as what they rely on comes
    elsewhere. To look at each of a hundred for every result takes longer than most tasks.

    Parameters
    ----------
    scheduler
        The scheduler, read only.
    slots
        What a free thread is.
    seniority
        The place of a worker in the order in which they joined.
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
        self._seen_all = float("-inf")

    def has_free_thread(self, ws: WorkerState) -> bool:
        """Return whether a running worker has a thread with nothing to do."""
        return ws in self.scheduler.running and self.slots.has_free_thread(
            ws.nthreads, in_progress(ws)
        )

    def left(self, ws: WorkerState) -> None:
        """Take note that a worker left, paused or retires."""
        self.finished.pop(ws, None)
        self._free.discard(ws)
        self._busy = []
        self._seen_all = float("-inf")

    def told(self) -> None:
        """Take note that those which had finished something have been looked at."""
        self._free.update(self.finished)  # and may still have a free thread
        self.finished.clear()

    def clear(self) -> None:
        """Forget everything: the scheduler restarts."""
        self.finished.clear()
        self._free.clear()
        self._busy = []

    def look(self, now: float) -> set[WorkerState]:
        """Return the workers to look at."""
        s = self.scheduler
        if (
            len(s.running) <= _FEW
            or not self.finished
            or not 0 <= now - self._seen_all < _ALL_EVERY
        ):
            self._look_at_all()
            self._seen_all = now
        else:
            self._free = {ws for ws in self._free if self.has_free_thread(ws)}
        found = {ws for ws in self.finished if ws in s.running} | self._free
        busy = self._busy
        if len(busy) > _MOST_BUSY:
            self._turn = (self._turn + _MOST_BUSY) % len(busy)
            busy = (busy + busy)[self._turn : self._turn + _MOST_BUSY]
        return found.union(ws for ws in busy if ws in s.idle_task_count)

    def _look_at_all(self) -> None:
        self._free, self._busy = set(), []
        has_free_thread = self.slots.has_free_thread
        for ws in self.scheduler.idle_task_count:
            if has_free_thread(ws.nthreads, in_progress(ws)):
                self._free.add(ws)
            else:
                self._busy.append(ws)
        if len(self._busy) > _MOST_BUSY:
            self._busy.sort(key=self.seniority)


def in_progress(ws: WorkerState) -> int:
    """Return how many tasks a worker has that take a thread."""
    return len(ws.processing) - len(ws.long_running)
