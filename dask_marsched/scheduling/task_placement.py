"""Chooses the worker for a task whose inputs are in memory, with the placement policy."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from distributed.scheduler import Scheduler, TaskState, WorkerState

from dask_marsched.host.scheduler import snapshot
from dask_marsched.policies.fusion import CRUMB
from dask_marsched.policies.placement import Candidate
from dask_marsched.scheduling.chosen_policies import Policies

#: Workers that are considered in place of a busy one.
_MOST_ALTERNATIVES = 8
#: With more holders of inputs than this the policy is asked about those with most bytes only: a
#: result that all tasks read may have copies on all workers.
_MOST_ASKED = 32
#: Duration, in seconds, from which a task may go to a less busy worker that lacks its small inputs.
_WORTH_A_FETCH = 0.02


class TaskPlacement:
    """Chooses workers for the tasks of one scheduler.

    `joined` has the addresses of workers in the order of joining. `several_to_a_host` tells whether
    there are several hosts, one of them with several workers.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        policies: Policies,
        seniority: Callable[[WorkerState], int],
        joined: Collection[str],
    ) -> None:
        self.scheduler: Any = scheduler
        self.policies = policies
        self.seniority = seniority
        self.joined = joined
        self.several_to_a_host = False
        self._turn = 0

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
        if len(ws.processing) < ws.nthreads:
            return self._less_busy(ts, ws, s.idle.values()) if ws.processing else ws
        if not self._last_wave():
            # No worker is idle, as all get withheld tasks: a few others are asked.
            return self._less_busy(ts, ws, self._some_workers())
        if snapshot.duration(ts) is None:
            return ws
        there = snapshot.input_bytes(ts)  # a single task waits for the transfer of all its inputs
        near = [other for other in holders if 2 * there[other] >= there[ws] and other is not ws]
        placement = self.policies.placement
        if near:
            ws = self._earlier(ts, ws, near, there, placement.relief, met=True)
        if len(ws.processing) >= ws.nthreads and (idle := self._idle(there)):
            ws = self._earlier(ts, ws, idle, there, placement.spare, met=False)
        return ws

    def _idle(self, there: Mapping[WorkerState, int]) -> list[WorkerState]:
        """Return the workers with nothing to do that hold inputs, and a few that joined first.

        To rank a thousand idle workers for each task takes longer than most tasks run.
        """
        s = self.scheduler
        holders = [ws for ws in there if ws.address in s.idle and not ws.processing]
        others = (ws for ws in map(s.idle.get, self.joined) if ws and ws not in there)
        return holders + list(islice((w for w in others if not w.processing), _MOST_ALTERNATIVES))

    def _some_workers(self) -> Iterator[WorkerState]:
        """Return running workers, other ones each time if there are many."""
        workers = self.scheduler.workers.values()
        begin, self._turn = self._turn, self._turn + _MOST_ASKED
        for i in range(begin, begin + min(_MOST_ASKED, len(workers))):
            ws = workers[i % len(workers)]
            if ws in self.scheduler.running:
                yield ws

    def _less_busy(
        self, ts: TaskState, ws: WorkerState, others: Iterable[WorkerState]
    ) -> WorkerState:
        """Return a worker with fewer tasks for each thread, or the given one.

        The threads of a worker share its interpreter: with few tasks on one small input, other
        workers would idle.
        """
        duration = snapshot.duration(ts)
        is_short = duration is not None and duration < _WORTH_A_FETCH
        if is_short or ts.get_nbytes_deps() > CRUMB:
            return ws
        less = [
            other
            for other in islice(others, _MOST_ASKED)
            if (len(other.processing) + 1) * ws.nthreads <= len(ws.processing) * other.nthreads
        ]
        return min(
            less,
            key=lambda other: (len(other.processing) / other.nthreads, self.seniority(other)),
            default=ws,
        )

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

    def _earlier(
        self,
        ts: TaskState,
        chosen: WorkerState,
        others: list[WorkerState],
        there: dict[WorkerState, int],
        ask: Callable[[Candidate, list[Candidate], float], int | None],
        *,
        met: bool,
    ) -> WorkerState:
        """Return another worker that would start a task earlier, or the chosen one."""
        others = heapq.nsmallest(
            _MOST_ALTERNATIVES, others, key=lambda ws: (-there.get(ws, 0), self.seniority(ws))
        )
        all_met = snapshot.met_bytes(ts, [chosen, *others]) if met else {}

        def candidate(ws: WorkerState, held: float) -> Candidate:
            return snapshot.candidate(ws, held, all_met.get(ws, 0), backlog=True)

        index = ask(
            candidate(chosen, ts.get_nbytes_deps()),
            [candidate(ws, there.get(ws, 0)) for ws in others],
            self.scheduler.bandwidth,
        )
        return chosen if index is None else others[index]
