"""Collects garbage while a scheduler has nothing to do."""

from __future__ import annotations

from typing import ClassVar

from dask_marsched.host.scheduler import garbage_collection
from dask_marsched.host.scheduler.periodic_checks import PeriodicCheck


class IdleCollection(PeriodicCheck):
    """Frees what was left while the collector was paused, once no task runs.

    Otherwise the next graph that arrives would wait for it: 0.25 s in a process with a million
    objects.
    """

    interval: ClassVar[float] = 0.5
    hook: ClassVar[str] = "collect"

    def check(self) -> None:
        """Collect if that is due and no task runs."""
        s = self.scheduler
        busy = s.queued or any(ws.processing for ws in s.workers.values())
        if not busy and garbage_collection.is_due():
            garbage_collection.collect()

    def goes_on(self) -> bool:
        """Return whether it may still be due."""
        return garbage_collection.may_be_due()
