"""What the policies see: graphs and candidates read from a scheduler's state."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from distributed.scheduler import TaskState, WorkerState

from dask_marsched.core.graph import NO_HOME, OperandGraph
from dask_marsched.core.plan import WorkerSlot
from dask_marsched.policies.placement import Candidate

#: States of tasks whose results exist or have failed: not operands to plan.
_DONE = frozenset({"memory", "erred", "forgotten"})


def worker_slots(workers: Iterable[WorkerState], bound: Mapping[str, int]) -> list[WorkerSlot]:
    """Describe workers to an assignment policy.

    Parameters
    ----------
    workers
        The workers.
    bound
        By address, the number of initial operands each has run or is bound to run.
    """
    return [
        WorkerSlot(ws.address, ws.nthreads, ws.memory_limit, bound.get(ws.address, 0))
        for ws in workers
    ]


def tasks_to_compute(wanted: Iterable[TaskState]) -> list[TaskState]:
    """Return the tasks that must run for the wanted ones, each after those it reads.

    They come in the scheduler's order of priority, user priorities left aside: they say what
    runs first among ready tasks, not what belongs together.
    """
    stack = [ts for ts in wanted if ts.state not in _DONE]
    seen = set(stack)
    add, push = seen.add, stack.append
    while stack:
        for dts in stack.pop().dependencies:
            if dts not in seen and dts.state not in _DONE:
                add(dts)
                push(dts)
    todo = sorted((ts for ts in seen if ts.run_spec is not None and ts.priority), key=_order)
    position = {ts: i for i, ts in enumerate(todo)}
    for i, ts in enumerate(todo):
        for dts in ts.dependencies:
            if position.get(dts, -1) > i:
                return _topological(todo, position)
    return todo


def _order(ts: TaskState) -> tuple[float, ...]:
    return ts.priority[1:] if ts.priority else ()


def _topological(todo: list[TaskState], position: dict[TaskState, int]) -> list[TaskState]:
    """Sort tasks so that each comes after those it reads, by `position` where that is open."""
    missing = [sum(dts in position for dts in ts.dependencies) for ts in todo]
    ready = [i for i, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    out = []
    while ready:
        ts = todo[heapq.heappop(ready)]
        out.append(ts)
        for dts in ts.dependents:
            i = position.get(dts)
            if i is not None:
                missing[i] -= 1
                if not missing[i]:
                    heapq.heappush(ready, i)
    return out


def operand_graph(
    todo: list[TaskState],
    nbytes: Callable[[TaskState], tuple[float, bool]],
    worker_number: Mapping[str, int],
) -> OperandGraph:
    """Return the graph of the tasks that are to be computed.

    Parameters
    ----------
    todo
        The tasks, as `tasks_to_compute` returned them.
    nbytes
        Size of a task's result in bytes, and whether that is more than a guess.
    worker_number
        Number of each worker, by address, for `OperandGraph.home`.
    """
    position = {ts: i for i, ts in enumerate(todo)}
    get = position.get
    inputs: list[list[int]] = []
    sizes: list[float] = []
    known = bytearray(len(todo))
    home = [NO_HOME] * len(todo)
    home_bytes = [0.0] * len(todo)
    for i, ts in enumerate(todo):
        own = []
        for dts in ts.dependencies:
            j = get(dts)
            if j is not None:
                own.append(j)
        own.sort()
        inputs.append(own)
        if len(own) < len(ts.dependencies):
            home[i], home_bytes[i] = _home(ts, worker_number)
        size, known[i] = nbytes(ts)
        sizes.append(size)
    return OperandGraph([ts.key for ts in todo], inputs, sizes, bytes(known), home, home_bytes)


def _home(ts: TaskState, worker_number: Mapping[str, int]) -> tuple[int, float]:
    there = input_bytes(ts)
    numbered = {
        worker_number[ws.address]: held for ws, held in there.items() if ws.address in worker_number
    }
    if not numbered:
        return NO_HOME, 0.0
    best = max(numbered, key=lambda number: (numbered[number], -number))
    return best, numbered[best]


def input_bytes(ts: TaskState) -> dict[WorkerState, int]:
    """Return how many bytes of a task's inputs each worker holds."""
    there: dict[WorkerState, int] = {}
    for dts in ts.dependencies:
        size = dts.get_nbytes()
        for ws in dts.who_has or ():
            there[ws] = there.get(ws, 0) + size
    return there


def input_bytes_on(ts: TaskState, ws: WorkerState) -> tuple[float, float]:
    """Return how many bytes of a task's inputs one worker holds, and how many there are."""
    here = everywhere = 0
    for dts in ts.dependencies:
        size = dts.get_nbytes()
        everywhere += size
        if dts.who_has and ws in dts.who_has:
            here += size
    return here, everywhere


def candidate(ws: WorkerState, held: float, *, backlog: bool = False) -> Candidate:
    """Describe a worker to a placement policy; its backlog only where it is asked for."""
    nthreads = ws.nthreads or 1
    return Candidate(
        ws.address,
        held,
        (len(ws.processing) - len(ws.long_running)) / nthreads,
        ws.nbytes / ws.memory_limit if ws.memory_limit else float(ws.nbytes),
        ws.occupancy / nthreads if backlog else 0.0,
    )


def restricted(ts: TaskState) -> str | None:
    """Return why the user, not a policy, decides where a task runs, or None."""
    if ts.worker_restrictions or ts.host_restrictions or ts.resource_restrictions:
        return "restricted to workers, hosts or resources"
    if ts.actor:
        return "actor"
    return None


def duration(ts: TaskState) -> float | None:
    """Return the mean duration in seconds of tasks like this one, None if none has run."""
    mean: Any = ts.prefix.duration_average
    return float(mean) if mean >= 0 else None


def mean_nbytes(ts: TaskState) -> float:
    """Return the mean size in bytes of results of tasks like this one; inf if there is none."""
    prefix = ts.prefix
    done = sum(prefix.states.get(state, 0) for state in ("memory", "released", "forgotten"))
    return prefix.nbytes_total / done if done else float("inf")
