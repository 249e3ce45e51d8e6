"""Replicates results that would take long to recompute to a worker on another machine.

Dask's Active Memory Manager makes the copies. It would drop them in its next round, so
`ReplicaRemoval` asks here which results keep both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distributed.metrics import time
from distributed.scheduler import Scheduler, TaskState, WorkerState

from dask_marsched.host.contract import demand, misfits_of_attributes
from dask_marsched.host.scheduler.lost_results import TOPIC
from dask_marsched.host.scheduler.periodic_checks import PeriodicCheck
from dask_marsched.host.scheduler.replica_removal import ReplicaRemoval
from dask_marsched.policies.replication import (
    EXPENSIVE,
    ReplicaCandidate,
    choose_replicas,
    recomputation_seconds,
)

#: Share of the memory of all workers that copies may take, so that they cannot fail a run.
_SHARE = 0.05
_ATTRIBUTES = ("request_acquire_replicas", "workers", "running")


def misfits(scheduler: Any) -> list[str]:
    """Return what replication does not find in a scheduler; empty if all is well."""
    return misfits_of_attributes("Scheduler", scheduler, _ATTRIBUTES)


class ExtraReplicas(PeriodicCheck):
    """Replicates expensive results and keeps the replicas; ``removal`` asks which ones to keep."""

    interval = 0.5
    hook = "protection"

    def __init__(
        self,
        scheduler: Scheduler,
        removal: ReplicaRemoval,
        caught: Callable[[str, Exception], None],
    ) -> None:
        super().__init__(scheduler, caught)
        self.least, self.share = EXPENSIVE, _SHARE
        self.copied = self.copied_bytes = 0
        self._removal = removal
        self._durations: dict[str, float] = {}
        # The cost of new results is not known yet; the readers of released ones now cost more.
        self._new: dict[TaskState, None] = {}
        self._released: dict[TaskState, None] = {}
        self._expensive: dict[TaskState, ReplicaCandidate[TaskState]] = {}
        self._kept: dict[TaskState, int] = {}

    def install(self) -> None:
        """Begin; raise a RuntimeError if this version of distributed does not fit."""
        demand(misfits(self.scheduler), "expensive results are not replicated")
        self._removal.protected = self.is_protected
        super().install()

    def uninstall(self) -> None:
        """Stop; Dask then drops the replicas. Idempotent."""
        super().uninstall()
        self._removal.protected = None
        for results in (self._new, self._expensive, self._released, self._kept):
            results.clear()

    def is_protected(self, ts: TaskState) -> bool:
        """Return whether a result keeps its replicas."""
        return ts in self._kept

    def finished(self, ts: TaskState, seconds: float) -> None:
        """Record the duration of an execution."""
        name = ts.prefix.name
        before = self._durations.get(name, seconds)
        self._durations[name] = before + (seconds - before) / 8
        self._new[ts] = None
        self.schedule()

    def released(self, ts: TaskState) -> None:
        """Record that a result was released or lost."""
        for results in (self._new, self._expensive, self._kept):
            results.pop(ts, None)
        self._released[ts] = None
        self.schedule()

    def workers_changed(self) -> None:
        """Record that a worker was removed or added."""
        for ts in [ts for ts in self._kept if len(ts.who_has or ()) < 2]:
            del self._kept[ts]
        self.schedule()

    def check(self) -> None:
        """Copy the most expensive results as far as the budget allows."""
        s = self.scheduler
        self._find_expensive()
        found = [c for ts, c in self._expensive.items() if ts not in self._kept and _is_alone(ts)]
        memory = sum(ws.memory_limit for ws in s.workers.values())
        budget = self.share * memory - sum(self._kept.values())
        asked: dict[str, list[Any]] = {}
        load = {ws: ws.nbytes for ws in s.running}
        for ts in choose_replicas(found, budget, self.least):
            target = _elsewhere(ts, load)
            if target is None:
                continue
            load[target] += ts.get_nbytes()
            self._kept[ts] = ts.get_nbytes()
            self.copied += 1
            self.copied_bytes += ts.get_nbytes()
            asked.setdefault(target.address, []).append(ts.key)
        for address, keys in asked.items():
            s.request_acquire_replicas(address, keys, stimulus_id=f"marsched-protect-{time()}")
        if asked:
            count = sum(map(len, asked.values()))
            s.log_event(TOPIC, {"action": "protected", "results": count, "time": time()})

    def _find_expensive(self) -> None:
        """Estimate the cost of new results, and again that of readers of released ones."""
        # A released input makes its readers more expensive, also through released readers.
        gone = list(self._released)
        while gone:
            for ts in gone.pop().dependents:
                if ts.who_has:
                    self._new[ts] = None
                elif ts.state == "released" and ts not in self._released:
                    self._released[ts] = None
                    gone.append(ts)
        # Sorted, because the order of a set is not repeatable.
        for ts in sorted(self._new, key=lambda ts: ts.priority or ()):
            candidate = self._candidate(ts)
            if candidate.seconds >= self.least:
                self._expensive[ts] = candidate
        self._new.clear()
        self._released.clear()

    def _candidate(self, ts: TaskState) -> ReplicaCandidate[TaskState]:
        seconds = recomputation_seconds(
            ts,
            lambda one: one.dependencies,
            lambda one: bool(one.who_has),
            lambda one: self._durations.get(one.prefix.name, 0.0),
        )
        return ReplicaCandidate(ts, ts.get_nbytes(), seconds)


def _is_alone(ts: TaskState) -> bool:
    """Return whether a result is needed and has a single copy."""
    needed = bool(ts.waiters or ts.who_wants)
    return ts.state == "memory" and needed and len(ts.who_has or ()) == 1 and not ts.actor


def _elsewhere(ts: TaskState, load: dict[WorkerState, int]) -> WorkerState | None:
    """Return the worker that holds least, on another machine if there is one."""
    (holder,) = ts.who_has  # type: ignore[misc]  # `_is_alone`
    there = [ws for ws in load if ws is not holder]
    others = [ws for ws in there if ws.host != holder.host] or there
    return min(others, key=lambda ws: (load[ws], ws.address), default=None)
