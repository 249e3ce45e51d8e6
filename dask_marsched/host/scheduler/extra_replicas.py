"""Second copies of results whose loss would cost much time, kept on another host.

Dask's memory manager makes the copies, and would drop them at its next look: what is protected it
leaves alone, and so do we.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from distributed.metrics import time
from distributed.scheduler import Scheduler, TaskState, WorkerState

from dask_marsched.host.contract import demand
from dask_marsched.host.scheduler.replica_removal import Dropping
from dask_marsched.policies.replication import (
    ProtectionRule,
    ReplicaCandidate,
    recomputation_seconds,
)

#: Seconds between two looks.
_EVERY = 0.5
#: Share of the memory of all workers that copies may take: no run shall fail for its protection.
_SHARE = 0.05
TOPIC = "marsched-failover"


def misfits(scheduler: Any) -> list[str]:
    """Return what in a scheduler is not as protection expects it; empty if all is well."""
    names = ("request_acquire_replicas", "workers", "running")
    return [f"Scheduler has no attribute {n}" for n in names if not hasattr(scheduler, n)]


class Protection:
    """Has dear results copied, and keeps the copies.

    Parameters
    ----------
    scheduler
        The scheduler.
    rule
        Decides.
    dropping
        Is told what is not to be dropped.
    caught
        Told of exceptions of ours: (where, exception).

    Attributes
    ----------
    share : float
        Share of the memory of all workers that copies may take.
    copied, copied_bytes : int
        Copies asked for so far, and their bytes.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        rule: ProtectionRule,
        dropping: Dropping,
        caught: Callable[[str, Exception], None],
    ) -> None:
        self.scheduler: Any = scheduler
        self.rule = rule
        self.share = _SHARE
        self.copied = self.copied_bytes = 0
        self._dropping = dropping
        self._caught = caught
        self._durations: dict[str, float] = {}
        # Of the new ones it is not known yet how dear they are; who reads what was released may
        # have become dear.
        self._new: dict[TaskState, None] = {}
        self._released: dict[TaskState, None] = {}
        self._dear: dict[TaskState, ReplicaCandidate[TaskState]] = {}
        self._kept: dict[TaskState, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._installed = False

    def install(self) -> None:
        """Begin.

        Raises
        ------
        RuntimeError
            This version of distributed is not as expected; nothing has been changed.
        """
        demand(misfits(self.scheduler), "dear results are not copied")
        self._dropping.protected = self.is_protected
        self._installed = True

    def uninstall(self) -> None:
        """Protect nothing any more; Dask drops the copies. Idempotent."""
        self._installed = False
        self._dropping.protected = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for known in (self._new, self._dear, self._released, self._kept):
            known.clear()

    def is_protected(self, ts: TaskState) -> bool:
        """Whether all copies of a result stay."""
        return ts in self._kept

    # -- what happens ----------------------------------------------------------------------

    def finished(self, ts: TaskState, seconds: float) -> None:
        """Take note of an execution, and how long it took."""
        name = ts.prefix.name
        before = self._durations.get(name, seconds)
        self._durations[name] = before + (seconds - before) / 8
        self._new[ts] = None
        self._look_soon()

    def released(self, ts: TaskState) -> None:
        """Take note that a result is not needed any more, or lost."""
        for known in (self._new, self._dear, self._kept):
            known.pop(ts, None)
        self._released[ts] = None
        self._look_soon()

    def workers_changed(self) -> None:
        """Take note that a worker was removed, or another came that can hold copies."""
        for ts in [ts for ts in self._kept if len(ts.who_has or ()) < 2]:
            del self._kept[ts]
        self._look_soon()

    # -- looking ---------------------------------------------------------------------------

    def _look_soon(self) -> None:
        if self._installed and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_EVERY, self._look)

    def _look(self) -> None:
        self._timer = None
        try:
            self._copy_some()
        except Exception as error:
            self._caught("protection", error)

    def _copy_some(self) -> None:
        s = self.scheduler
        self._find_dear()
        found = [c for ts, c in self._dear.items() if ts not in self._kept and _is_alone(ts)]
        memory = sum(ws.memory_limit for ws in s.workers.values())
        budget = self.share * memory - sum(self._kept.values())
        asked: dict[str, list[Any]] = {}
        load = {ws: ws.nbytes for ws in s.running}
        for ts in self.rule.choose(found, budget):
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

    def _find_dear(self) -> None:
        """Find out how dear results are of which that is not known, or not any more."""
        # What reads something that was released takes longer to have again, and so does what
        # reads that, in turn, where it was released before.
        gone = list(self._released)
        while gone:
            for ts in gone.pop().dependents:
                if ts.who_has:
                    self._new[ts] = None
                elif ts.state == "released" and ts not in self._released:
                    self._released[ts] = None
                    gone.append(ts)
        # The order must not depend on that of a set.
        for ts in sorted(self._new, key=lambda ts: ts.priority or ()):
            candidate = self._candidate(ts)
            if candidate.seconds >= self.rule.least:
                self._dear[ts] = candidate
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
    """Whether a result is needed, and there is one copy of it."""
    needed = bool(ts.waiters or ts.who_wants)
    return ts.state == "memory" and needed and len(ts.who_has or ()) == 1 and not ts.actor


def _elsewhere(ts: TaskState, load: dict[WorkerState, int]) -> WorkerState | None:
    """Return the worker on another host that holds least; on this host where there is no other."""
    (holder,) = ts.who_has  # type: ignore[misc]  # it is alone
    there = [ws for ws in load if ws is not holder]
    others = [ws for ws in there if ws.host != holder.host] or there
    return min(others, key=lambda ws: (load[ws], ws.address), default=None)
