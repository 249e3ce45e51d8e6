"""What Dask's memory manager may drop of the copies of a result, where some of them matter."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from distributed.scheduler import Scheduler, TaskState, WorkerState


def misfits(scheduler: Any) -> list[str]:
    """Return what in a scheduler is not as this expects it; empty if all is well."""
    dropper = getattr(getattr(scheduler, "extensions", {}).get("amm"), "_find_dropper", None)
    there = [] if dropper is None else list(inspect.signature(dropper).parameters)
    if dropper is not None and there != ["ts", "candidates", "pending_drop"]:
        return [f"the memory manager's _find_dropper takes {there}"]
    return []


class Dropping:
    """Comes before the memory manager's choice of a copy to drop.

    Parameters
    ----------
    scheduler
        The scheduler.

    Attributes
    ----------
    keepers : callable
        Returns who holds a result so that it outlives that worker's process.
    protected : callable or None
        Whether all copies of a result are to stay.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.keepers: Callable[[TaskState], list[WorkerState]] = lambda ts: []
        self.protected: Callable[[TaskState], bool] | None = None
        self._manager: Any = scheduler.extensions.get("amm")
        self._fits = not misfits(scheduler)

    def install(self) -> None:
        """Come before it, if there is one that is as expected."""
        if self._manager is not None and self._fits:
            self._manager._find_dropper = self._find_dropper

    def uninstall(self) -> None:
        """Restore it. Idempotent."""
        if self._manager is not None:
            vars(self._manager).pop("_find_dropper", None)

    def is_protected(self, ts: TaskState) -> bool:
        """Whether all copies of a result are to stay."""
        return self.protected is not None and self.protected(ts)

    def _find_dropper(self, ts: TaskState, candidates: Any, pending_drop: Any) -> Any:
        # A worker that retires names itself: it lets go of whatever there is elsewhere.
        if candidates is None:
            if self.is_protected(ts) and len(ts.who_has or ()) <= 2:
                return None
            keepers = self.keepers(ts)
            if keepers:  # one is enough
                candidates = (ts.who_has or set()) - set(keepers[:1])
        return type(self._manager)._find_dropper(self._manager, ts, candidates, pending_drop)
