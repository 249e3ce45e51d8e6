"""Finds plans: remembered ones, prompt ones, and better ones by a search beside the event loop."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.plan import Unit, WorkerSlot
from dask_marsched.core.plan_digest import plan_digest
from dask_marsched.fallbacks.counters import Counters
from dask_marsched.policies.assignment import AssignmentPolicy, SearchingPolicy
from dask_marsched.policies.planning.search_budget import (
    Search,
    extent_of_search,
    seconds_at_stake,
)

#: Plans that are remembered, and operands in all of them.
_PLANS, _OPERANDS = 100, 300_000

Adopt = Callable[[list[Unit]], None]


class Searching:
    """Finds the plans of one scheduler.

    Parameters
    ----------
    policy
        Makes them.
    counters
        Where to count.
    """

    def __init__(self, policy: AssignmentPolicy, counters: Counters) -> None:
        self._policy = policy
        self._searching = policy if isinstance(policy, SearchingPolicy) else None
        self._counters = counters
        self._remembered: OrderedDict[bytes, list[Unit]] = OrderedDict()
        self._operands = 0
        self._waiting: dict[bytes, list[Adopt]] = {}
        self._executor: ThreadPoolExecutor | None = None

    def find(
        self,
        graph: OperandGraph,
        workers: Sequence[WorkerSlot],
        pending: Collection[int],
        adopt: Adopt,
    ) -> tuple[list[Unit], bool]:
        """Return the plan to begin with, and whether a search for a better one goes on.

        Parameters
        ----------
        graph
            The graph.
        workers
            The workers.
        pending
            The initial operands to plan.
        adopt
            Called on the event loop with what such a search has found; nothing if it failed.
        """
        policy = self._searching
        if policy is None:
            return self._policy.assign(graph, workers, pending), False
        digest = plan_digest(graph, workers, pending)
        units = self._recall(digest)
        if units is not None:
            self._counters.recalled += 1
            return units, False
        if digest in self._waiting:
            self._waiting[digest].append(adopt)
            return policy.prompt(graph, workers, pending), True
        extent = extent_of_search(policy.effort(graph, workers), seconds_at_stake(graph, workers))
        if extent is Search.IN_BACKGROUND:
            if (loop := _running_loop()) is not None:
                self._search(loop, digest, (graph, workers, pending), adopt)
                return policy.prompt(graph, workers, pending), True
            extent = Search.BEFORE_START
        plan = policy.assign if extent is Search.BEFORE_START else policy.prompt
        units = plan(graph, workers, pending)
        self._remember(digest, units)
        return units, False

    def clear(self) -> None:
        """Adopt nothing any more; what was found stays remembered."""
        self._waiting.clear()

    def close(self) -> None:
        """Let the thread end, with the search that it is at."""
        self.clear()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def _search(
        self,
        loop: asyncio.AbstractEventLoop,
        digest: bytes,
        work: tuple[OperandGraph, Sequence[WorkerSlot], Collection[int]],
        adopt: Adopt,
    ) -> None:
        """Search in a thread of our own: the offload thread reads the graphs that arrive."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="marsched-plans")
        adopters = self._waiting[digest] = [adopt]
        future = loop.run_in_executor(self._executor, self._policy.assign, *work)

        def done(future: asyncio.Future[list[Unit]]) -> None:
            wanted = self._waiting.get(digest) is adopters
            if wanted:
                del self._waiting[digest]
            if future.cancelled():
                return
            error = future.exception()
            if error is not None:
                self._counters.caught("search", Exception(repr(error)))
            else:
                self._remember(digest, future.result())
            if wanted:
                for each in adopters:
                    self._tell(each, future.result() if error is None else [])

        future.add_done_callback(done)

    def _tell(self, adopt: Adopt, units: list[Unit]) -> None:
        try:
            adopt(units)
        except Exception as error:  # the plan in force stays
            self._counters.caught("adopt", error)

    def _recall(self, digest: bytes) -> list[Unit] | None:
        units = self._remembered.get(digest)
        if units is not None:
            self._remembered.move_to_end(digest)
        return units

    def _remember(self, digest: bytes, units: list[Unit]) -> None:
        if digest in self._remembered:
            return
        self._remembered[digest] = units
        self._operands += _operands(units)
        while len(self._remembered) > _PLANS or self._operands > _OPERANDS:
            _, dropped = self._remembered.popitem(last=False)
            self._operands -= _operands(dropped)


def _operands(units: list[Unit]) -> int:
    return sum(len(unit.operands) for unit in units)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
