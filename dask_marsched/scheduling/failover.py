"""The part of the scheduler plugin that deals with what dies, or stands still."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dask.typing import Key
from distributed.scheduler import Scheduler, TaskState

from dask_marsched.config import Settings
from dask_marsched.host.scheduler.adopters import READY
from dask_marsched.host.scheduler.adoption import KEPT, Adoption
from dask_marsched.host.scheduler.extra_replicas import ExtraReplicas
from dask_marsched.host.scheduler.replica_removal import ReplicaRemoval
from dask_marsched.host.scheduler.speculative_execution import SpeculativeExecution
from dask_marsched.policies.replication import ProtectionRule
from dask_marsched.policies.stragglers import StragglerRule
from dask_marsched.scheduling.engine import PlacementEngine
from dask_marsched.scheduling.worker_losses import Recoveries

logger = logging.getLogger("dask_marsched")


class Failover:
    """Tells of losses, has results taken over or copied before, runs stragglers a second time.

    Parameters
    ----------
    scheduler
        A running `distributed.Scheduler`.
    settings
        What is switched on.
    engine
        Whose counters count failures of this, and which is told which copies to keep.
    clock
        Returns the time in seconds.

    Attributes
    ----------
    recoveries
        Losses of workers, and what became of them.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        settings: Settings,
        engine: PlacementEngine,
        clock: Callable[[], float],
    ) -> None:
        self.scheduler = scheduler
        caught = engine.counters.caught
        self.recoveries = Recoveries(scheduler, engine.counters, clock)
        self._dropping = ReplicaRemoval(scheduler)
        self._protection: ExtraReplicas | None = None
        self._adoption: Adoption | None = None
        self._seconds: SpeculativeExecution | None = None
        if settings.adopts:
            self._adoption = Adoption(scheduler, caught, settings.restart_patience)
            if _installed(self._adoption):
                engine.replicas.keepers = self._dropping.keepers = self._adoption.keepers
            else:
                self._adoption = None
        if settings.second_runs:
            self._seconds = SpeculativeExecution(scheduler, StragglerRule(), caught)
            if not _installed(self._seconds):
                self._seconds = None
        if settings.protects:
            self._protection = ExtraReplicas(scheduler, ProtectionRule(), self._dropping, caught)
            if _installed(self._protection):
                engine.replicas.protected = self._protection.is_protected
            else:
                self._protection = None
        if self._adoption is not None or self._protection is not None:
            self._dropping.install()

    def uninstall(self) -> None:
        """Restore the scheduler. Idempotent."""
        self._dropping.uninstall()
        for part in (self._adoption, self._seconds, self._protection):
            if part is not None:
                part.uninstall()

    def clear(self) -> None:
        """Wait for nothing any more: all tasks are gone."""
        self.recoveries.clear()

    # -- hooks -----------------------------------------------------------------------------

    def sent(self) -> None:
        """Take note that something was sent to a worker."""
        if self._seconds is not None:
            self._seconds.sent()

    def left(self, ts: TaskState) -> None:
        """Take note that no worker is to run a task any more, for whatever reason."""
        if self._seconds is not None:
            self._seconds.left(ts)

    def ran(self, ts: TaskState, startstops: Iterable[Mapping[str, Any]]) -> None:
        """Take note of an execution, and how long it took."""
        parts = [part for part in (self._seconds, self._protection) if part is not None]
        if not parts:
            return
        for action in startstops:
            if action["action"] == "compute":
                for part in parts:
                    part.finished(ts, action["stop"] - action["start"])

    def settled(self, key: Key) -> None:
        """Take note that an operand has a result, has failed or is not wanted any more."""
        self.recoveries.settled(key)

    def released(self, ts: TaskState) -> None:
        """Take note that an operand has no result, or none any more."""
        if self._adoption is not None:
            self._adoption.forget(ts.key)
        if self._protection is not None:
            self._protection.released(ts)

    def worker_came(self) -> None:
        """Take note that there is another worker."""
        if self._protection is not None:
            self._protection.workers_changed()

    def worker_lost(self, worker: str, stimulus_id: str) -> None:
        """Tell what the loss of a worker makes necessary."""
        if self._seconds is not None:
            self._seconds.worker_lost(worker)
        if self._protection is not None:
            self._protection.workers_changed()
        adopted, reassigned = 0, None
        if self._adoption is not None:
            adopted = self._adoption.adopted(worker)
            reassigned = self._adoption.reassigned(worker)
        self.recoveries.worker_lost(worker, stimulus_id, adopted=adopted, reassigned=reassigned)

    def log_event(self, topic: str, msg: Any) -> None:
        """Take note of where workers keep their results, and of who can take them over."""
        if self._adoption is None:
            return
        if topic == KEPT:
            self._adoption.announced(*msg)
        elif topic == READY:
            self._adoption.adopters.ready(msg)

    # -- what there is ---------------------------------------------------------------------

    def kept(self) -> set[Key]:
        """Return the keys of the results that outlive their worker's process."""
        return self._adoption.kept() if self._adoption is not None else set()

    def report(self) -> dict[str, int]:
        """Return counts of second runs and second copies, as plain values for JSON."""
        seconds, protection = self._seconds, self._protection
        return {
            "second_runs": seconds.begun if seconds is not None else 0,
            "second_runs_won": seconds.won if seconds is not None else 0,
            "protected": protection.copied if protection is not None else 0,
            "protected_bytes": protection.copied_bytes if protection is not None else 0,
        }


def _installed(part: Adoption | SpeculativeExecution | ExtraReplicas) -> bool:
    try:
        part.install()
    except RuntimeError as misfit:
        logger.warning("%s", misfit)
        return False
    return True
