"""Which worker suits a task whose inputs are in memory: asks the placement policy."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from distributed.scheduler import Scheduler, TaskState, WorkerState

from dask_marsched.host.scheduler import snapshot
from dask_marsched.policies.placement import Candidate
from dask_marsched.scheduling.planner import Policies

#: Other workers that are looked at in place of one that has the inputs but is busy.
_MOST_OTHERS = 8
#: Of more workers with inputs the policy is asked about those with most of them only: copies of a
#: result that all tasks read may be on all workers.
_MOST_ASKED = 32


class TaskPlacement:
    """Finds the worker for a task.

    Parameters
    ----------
    scheduler
        The scheduler, read only.
    policies
        What decides.
    seniority
        The place of a worker in the order in which they joined.

    Attributes
    ----------
    several_to_a_host : bool
        Whether there are several hosts, and several workers on one of them.
    """

    def __init__(
        self, scheduler: Scheduler, policies: Policies, seniority: Callable[[WorkerState], int]
    ) -> None:
        self.scheduler: Any = scheduler
        self.policies = policies
        self.seniority = seniority
        self.several_to_a_host = False

    def worker_for(self, ts: TaskState) -> WorkerState | None:
        """Return the worker for a ready task, None if its inputs are on none that runs."""
        s = self.scheduler
        fetches = snapshot.fetches(ts, len(s.running) or 1, s.bandwidth)
        # What costs nothing to fetch decides nothing, and all workers may hold it.
        saved = snapshot.held({dts: cost for dts, cost in fetches.items() if cost})
        holders = [ws for ws in saved if ws in s.running]
        if not holders:
            saved = snapshot.held(fetches)
            holders = [ws for ws in saved if ws in s.running]
        if not holders:
            return None
        if len(holders) > 1:
            holders = self._on_one_host(fetches, holders)
        asked = holders
        if len(holders) > _MOST_ASKED:
            most = max(saved[ws] for ws in holders)
            asked = [ws for ws in holders if saved[ws] == most]
        ws = asked[0]
        if len(asked) > 1:
            asked.sort(key=self.seniority)
            ws = asked[self.policies.placement.choose(self._candidates(ts, asked, saved))]
        if len(ws.processing) < ws.nthreads or not self._last_wave():
            return ws
        if snapshot.duration(ts) is None:
            return ws
        there = snapshot.input_bytes(ts)  # by itself it waits for all that it fetches
        ws = self._less_busy(ts, ws, holders, there)
        return self._spare(ts, ws, there) if s.idle else ws

    def _last_wave(self) -> bool:
        """Whether so little is withheld that workers who finish early will find nothing to do."""
        return len(self.policies.withholding) <= int(self.scheduler.total_nthreads)

    @staticmethod
    def _candidates(
        ts: TaskState, holders: list[WorkerState], there: dict[WorkerState, float]
    ) -> list[Candidate]:
        most = max(there[ws] for ws in holders)
        tied = [ws for ws in holders if there[ws] == most]
        met = snapshot.met_bytes(ts, tied) if len(tied) > 1 else {}
        return [snapshot.candidate(ws, there[ws], met.get(ws, 0)) for ws in holders]

    def _on_one_host(
        self, fetches: dict[TaskState, float], holders: list[WorkerState]
    ) -> list[WorkerState]:
        """Return the workers of the hosts with most of the inputs: within one they move fast."""
        if not self.several_to_a_host:
            return holders
        there = snapshot.held_by_host(fetches)
        most = max(there[ws.host] for ws in holders)
        return [ws for ws in holders if there[ws.host] == most]

    def _less_busy(
        self,
        ts: TaskState,
        chosen: WorkerState,
        holders: list[WorkerState],
        there: dict[WorkerState, int],
    ) -> WorkerState:
        """Return the worker with inputs that would start a task earlier, or the chosen one."""
        near = [ws for ws in holders if 2 * there[ws] >= there[chosen] and ws is not chosen]
        if not near:
            return chosen
        near = heapq.nsmallest(_MOST_OTHERS, near, key=lambda ws: (-there[ws], self.seniority(ws)))
        met = snapshot.met_bytes(ts, [chosen, *near])
        index = self.policies.placement.relief(
            snapshot.candidate(chosen, _input_bytes(ts), met[chosen], backlog=True),
            [snapshot.candidate(ws, there[ws], met[ws], backlog=True) for ws in near],
            self.scheduler.bandwidth,
        )
        return chosen if index is None else near[index]

    def _spare(
        self, ts: TaskState, chosen: WorkerState, there: dict[WorkerState, int]
    ) -> WorkerState:
        """Return an idle worker that would start a task much earlier, or the chosen one."""
        idle = [ws for ws in self.scheduler.idle.values() if not ws.processing]
        if not idle or len(chosen.processing) < chosen.nthreads:
            return chosen
        idle = heapq.nsmallest(
            _MOST_OTHERS, idle, key=lambda ws: (-there.get(ws, 0), self.seniority(ws))
        )
        index = self.policies.placement.spare(
            snapshot.candidate(chosen, _input_bytes(ts), backlog=True),
            [snapshot.candidate(ws, there.get(ws, 0), backlog=True) for ws in idle],
            self.scheduler.bandwidth,
        )
        return chosen if index is None else idle[index]


def _input_bytes(ts: TaskState) -> float:
    return float(sum(dts.get_nbytes() for dts in ts.dependencies))
