"""Keeps Dask's Active Memory Manager from dropping replicas that failover relies on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from distributed.scheduler import Scheduler, TaskState, WorkerState


def misfits(scheduler: Any) -> list[str]:
    """Return what is not as expected in the memory manager; empty if all is well."""
    dropper = getattr(getattr(scheduler, "extensions", {}).get("amm"), "_find_dropper", None)
    there = [] if dropper is None else list(inspect.signature(dropper).parameters)
    if dropper is not None and there != ["ts", "candidates", "pending_drop"]:
        return [f"the memory manager's _find_dropper takes {there}"]
    return []


class ReplicaRemoval:
    """Restricts the memory manager's choice of the replica to drop.

    ``keepers`` returns the workers whose copy outlives their process; one of them keeps it.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.keepers: Callable[[TaskState], list[WorkerState]] = lambda ts: []
        self._manager: Any = scheduler.extensions.get("amm")
        self._fits = not misfits(scheduler)

    def install(self) -> None:
        """Wrap the memory manager's choice, if there is a manager and it fits."""
        if self._manager is not None and self._fits:
            self._manager._find_dropper = self._find_dropper

    def uninstall(self) -> None:
        """Restore the memory manager. Idempotent."""
        if self._manager is not None:
            vars(self._manager).pop("_find_dropper", None)

    def _find_dropper(self, ts: TaskState, candidates: Any, pending_drop: Any) -> Any:
        # A retiring worker names itself as the candidate; it may drop whatever others hold.
        if candidates is None:
            keepers = self.keepers(ts)
            if keepers:
                candidates = (ts.who_has or set()) - set(keepers[:1])
        return type(self._manager)._find_dropper(self._manager, ts, candidates, pending_drop)
