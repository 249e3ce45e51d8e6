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
from dask_marsched.host.dropping import Dropping
from dask_marsched.policies.protection import Candidate, ProtectionRule, seconds_to_have_again

#: Seconds between two looks.
_EVERY = 0.5
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
    share
        Share of the memory of all workers that copies may take.
    dropping
        Is told what is not to be dropped.
    caught
        Told of exceptions of ours: (where, exception).

    Attributes
    ----------
    copied, copied_bytes : int
        Copies asked for so far, and their bytes.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        rule: ProtectionRule,
        share: float,
        dropping: Dropping,
        caught: Callable[[str, Exception], None],
    ) -> None:
        self.scheduler: Any = scheduler
        self.rule = rule
        self.share = share
        self.copied = self.copied_bytes = 0
        self._dropping = dropping
        self._caught = caught
        self._durations: dict[str, float] = {}
        self._new: dict[TaskState, None] = {}
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
        self._new.clear()
        self._kept.clear()

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
        if self._installed and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_EVERY, self._look)

    def released(self, ts: TaskState) -> None:
        """Take note that a result is not needed any more, or lost."""
        self._new.pop(ts, None)
        self._kept.pop(ts, None)

    # -- looking ---------------------------------------------------------------------------

    def _look(self) -> None:
        self._timer = None
        try:
            self._copy_some()
        except Exception as error:
            self._caught("protection", error)

    def _copy_some(self) -> None:
        s = self.scheduler
        found = [self._candidate(ts) for ts in self._new if _is_alone(ts)]
        self._new.clear()
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

    def _candidate(self, ts: TaskState) -> Candidate[TaskState]:
        seconds = seconds_to_have_again(
            ts,
            lambda one: one.dependencies,
            lambda one: bool(one.who_has),
            lambda one: self._durations.get(one.prefix.name, 0.0),
        )
        return Candidate(ts, ts.get_nbytes(), seconds)


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
