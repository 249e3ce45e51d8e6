"""Chooses the worker for a task whose inputs are in memory, with the placement policy."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from distributed.scheduler import Scheduler, TaskState, WorkerState

from dask_marsched.host.scheduler import snapshot
from dask_marsched.policies.placement import Candidate
from dask_marsched.scheduling.chosen_policies import Policies

#: Workers that are considered in place of a busy one.
_MOST_ALTERNATIVES = 8
#: With more holders of inputs than this the policy is asked about those with most bytes only: a
#: result that all tasks read may have copies on all workers.
_MOST_ASKED = 32


class TaskPlacement:
    """Chooses workers for the tasks of one scheduler.

    `several_to_a_host` tells whether there are several hosts, one of them with several workers.
    """

    def __init__(
        self, scheduler: Scheduler, policies: Policies, seniority: Callable[[WorkerState], int]
    ) -> None:
        self.scheduler: Any = scheduler
        self.policies = policies
        self.seniority = seniority
        self.several_to_a_host = False

    def worker_for(self, ts: TaskState) -> WorkerState | None:
        """Return the worker for a ready task, None if no running worker has its inputs."""
        s = self.scheduler
        fetches = snapshot.fetches(ts, len(s.running) or 1, s.bandwidth)
        # Inputs that cost nothing to fetch decide only if there are no others.
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
        there = snapshot.input_bytes(ts)  # a single task waits for the transfer of all its inputs
        ws = self._less_busy(ts, ws, holders, there)
        return self._spare(ts, ws, there) if s.idle else ws

    def _last_wave(self) -> bool:
        """Whether so few tasks are withheld that workers which finish early will idle."""
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
        """Return the holders on the hosts with most input bytes: transfers within one are fast."""
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
        near = heapq.nsmallest(
            _MOST_ALTERNATIVES, near, key=lambda ws: (-there[ws], self.seniority(ws))
        )
        met = snapshot.met_bytes(ts, [chosen, *near])
        index = self.policies.placement.relief(
            snapshot.candidate(chosen, ts.get_nbytes_deps(), met[chosen], backlog=True),
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
            _MOST_ALTERNATIVES, idle, key=lambda ws: (-there.get(ws, 0), self.seniority(ws))
        )
        index = self.policies.placement.spare(
            snapshot.candidate(chosen, ts.get_nbytes_deps(), backlog=True),
            [snapshot.candidate(ws, there.get(ws, 0), backlog=True) for ws in idle],
            self.scheduler.bandwidth,
        )
        return chosen if index is None else idle[index]
