"""Handles lost, slow and stuck workers: adoption, second runs, recalled tasks, recoveries.

Shared results of a dead worker are adopted before the scheduler removes it. Then its losses are
reported. The engine notices the missing worker at its next dispatch (`workers_changed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dask.typing import Key
from distributed.scheduler import Scheduler, TaskState, WorkerState

from dask_marsched.config import Settings
from dask_marsched.host.contract import installed
from dask_marsched.host.scheduler.adopters import KEPT, READY
from dask_marsched.host.scheduler.adoption import Adoption
from dask_marsched.host.scheduler.queue_recall import QueueRecall
from dask_marsched.host.scheduler.speculative_execution import SpeculativeExecution
from dask_marsched.scheduling.engine import PlacementEngine
from dask_marsched.scheduling.loss_records import Recoveries


class Failover:
    """Installs adoption, second runs and recall in the scheduler, and reports lost workers."""

    def __init__(
        self,
        scheduler: Scheduler,
        settings: Settings,
        engine: PlacementEngine,
        clock: Callable[[], float],
    ) -> None:
        caught = engine.counters.caught
        self.recoveries = Recoveries(scheduler, engine.counters, clock)
        self._adoption: Adoption | None = None
        self._second_runs: SpeculativeExecution | None = None
        self._recall = installed(QueueRecall(scheduler, caught))
        if settings.adopts:
            self._adoption = installed(Adoption(scheduler, caught, settings.restart_patience))
            if self._adoption is not None:
                engine.replicas.keepers = self._adoption.keepers
        if settings.second_runs:
            self._second_runs = installed(SpeculativeExecution(scheduler, caught))
        if self._second_runs is not None:
            engine.replicas.second_workers = self._second_runs.workers_of
            if self._adoption is not None:
                self._adoption.second_workers = self._second_runs.workers_of

    def uninstall(self) -> None:
        """Restore the scheduler. Idempotent."""
        for part in (self._adoption, self._second_runs, self._recall):
            if part is not None:
                part.uninstall()

    def moved(
        self,
        ts: TaskState,
        start: str,
        finish: str,
        stimulus_id: str,
        startstops: Iterable[Mapping[str, Any]],
    ) -> None:
        """Note a transition; `startstops` are the times that the worker measured."""
        seconds = self._second_runs
        self.recoveries.moved(ts.key, start, finish, stimulus_id)
        if start == "processing" and seconds is not None:
            seconds.left(ts)
        if finish == "memory":
            if start == "processing" and seconds is not None:
                for action in startstops:
                    if action["action"] == "compute":
                        seconds.finished(ts, action["stop"] - action["start"])
            self.recoveries.settled(ts.key)
        elif finish == "processing":
            for sending in (self._recall, seconds):
                if sending is not None:
                    sending.schedule()
        elif finish in ("forgotten", "erred", "released"):
            if not (finish == "released" and (ts.waiters or ts.who_wants)):
                self.recoveries.settled(ts.key)
            if self._adoption is not None:
                self._adoption.forget(ts.key)

    def worker_left(self, worker: str, stimulus_id: str) -> None:
        """Note that a worker was removed."""
        if self._second_runs is not None:
            self._second_runs.worker_left(worker)
        adopted, reassigned = 0, None
        if self._adoption is not None:
            adopted = self._adoption.adopted(worker)
            reassigned = self._adoption.departed.reassigned(worker)
        self.recoveries.record_loss(worker, stimulus_id, adopted=adopted, reassigned=reassigned)

    def log_event(self, topic: str, msg: Any) -> None:
        """Handle the events by which workers announce shared results and readiness to adopt."""
        if self._adoption is None:
            return
        if topic == KEPT:
            self._adoption.announced(*msg)
        elif topic == READY:
            self._adoption.adopters.ready(msg)

    def without_dead(self, workers: list[WorkerState]) -> list[WorkerState]:
        """Return these workers without the dead ones that are still registered."""
        return workers if self._adoption is None else self._adoption.dead.left_out(workers)

    def kept(self) -> set[Key]:
        """Return the keys of the results that outlive their worker's process."""
        return self._adoption.kept() if self._adoption is not None else set()

    def report(self) -> dict[str, Any]:
        """Return counts of recalled operands and second runs, and the recoveries, for JSON."""
        seconds = self._second_runs
        return {
            "recalled_operands": self._recall.recalled if self._recall is not None else 0,
            "second_runs": seconds.begun if seconds is not None else 0,
            "second_runs_won": seconds.won if seconds is not None else 0,
            "recoveries": self.recoveries.report(),
        }
