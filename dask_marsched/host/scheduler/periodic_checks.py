"""Looks at a scheduler's tasks from time to time, while there is something to look for."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from distributed.scheduler import Scheduler, WorkerState

#: Seconds without a message after which a worker may have stalled.
SILENT = 5.0


def is_silent(ws: WorkerState, now: float) -> bool:
    """Whether a worker may have stalled."""
    return now - ws.last_seen >= SILENT


class PeriodicCheck(ABC):
    """Calls `check` some time after `schedule`, until it is uninstalled; counts its exceptions."""

    interval: ClassVar[float]  #: Seconds from `schedule` to `check`.
    hook: ClassVar[str]  #: Under which exceptions are counted.

    def __init__(self, scheduler: Scheduler, caught: Callable[[str, Exception], None]) -> None:
        self.scheduler: Any = scheduler
        self._caught = caught
        self._timer: asyncio.TimerHandle | None = None
        self._installed = False

    def install(self) -> None:
        """Begin."""
        self._installed = True

    def uninstall(self) -> None:
        """End. Idempotent."""
        self._installed = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def schedule(self) -> None:
        """Have `check` called, unless that is to come already."""
        if self._installed and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.interval, self._look)

    def _look(self) -> None:
        self._timer = None
        try:
            self.check()
        except Exception as error:
            self._caught(self.hook, error)
        if self.goes_on():
            self.schedule()

    def idle_workers(self, now: float) -> list[WorkerState]:
        """Return the running workers without a task that are heard of, the emptiest first."""
        idle = [ws for ws in self.scheduler.running if not ws.processing and not is_silent(ws, now)]
        return sorted(idle, key=lambda ws: (ws.nbytes, ws.address))

    @abstractmethod
    def check(self) -> None:
        """Look once."""

    def goes_on(self) -> bool:
        """Return whether to check again without another `schedule`."""
        return False
