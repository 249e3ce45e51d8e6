"""What the policies see: graphs and candidates read from a scheduler's state."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from distributed.scheduler import TaskState, WorkerState

from dask_marsched.core.graph import NO_HOME, Edges, OperandGraph
from dask_marsched.core.plan import WorkerSlot
from dask_marsched.policies.placement import Candidate

N = TypeVar("N", int, float)

#: States of tasks whose results exist or have failed: not operands to plan.
_DONE = frozenset({"memory", "erred", "forgotten"})

#: A task with more dependents than this is taken to make one of them ready without a look.
_MOST_DEPENDENTS = 32

#: An input is read often that each worker needs for as many tasks as this.
_OFTEN = 4
#: How many times as long as copying it all work with it must take on the workers that have it.
_WORTH_COPYING = 2

#: As many dependents of a task, and inputs of each, are looked at for what its result meets.
_MOST_MET = 8


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
        WorkerSlot(ws.address, ws.nthreads, ws.memory_limit, bound.get(ws.address, 0), ws.host)
        for ws in workers
    ]


def tasks_to_compute(
    wanted: Iterable[TaskState], touched: Iterable[TaskState] | None = None
) -> list[TaskState]:
    """Return the tasks that must run for the wanted ones, in the scheduler's order of priority.

    User priorities are left aside: they say what runs first among ready tasks, not what
    belongs together.

    Parameters
    ----------
    wanted
        Tasks whose results somebody wants.
    touched
        All tasks of a graph that arrived; where none of them has begun, all of them must run.
    """
    if touched is not None:
        touched = list(touched)
        if all(ts.state == "released" for ts in touched):
            return in_order(touched)
    stack = [ts for ts in wanted if ts.state not in _DONE]
    seen = set(stack)
    add, push = seen.add, stack.append
    while stack:
        for dts in stack.pop().dependencies:
            if dts not in seen and dts.state not in _DONE:
                add(dts)
                push(dts)
    return in_order(seen)


def in_order(tasks: Iterable[TaskState]) -> list[TaskState]:
    """Return the tasks that can run, in the scheduler's order of priority."""
    return sorted((ts for ts in tasks if ts.run_spec is not None and ts.priority), key=_order)


def _order(ts: TaskState) -> tuple[float, ...]:
    return ts.priority[1:] if ts.priority else ()


def topological(tasks: list[TaskState]) -> list[TaskState]:
    """Sort tasks so that each comes after those it reads, else in the order given."""
    position = {ts: i for i, ts in enumerate(tasks)}
    missing = [sum(dts in position for dts in ts.dependencies) for ts in tasks]
    ready = [i for i, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    out = []
    while ready:
        ts = tasks[heapq.heappop(ready)]
        out.append(ts)
        for dts in ts.dependents:
            i = position.get(dts)
            if i is not None:
                missing[i] -= 1
                if not missing[i]:
                    heapq.heappush(ready, i)
    return out


def operand_graph(
    tasks: list[TaskState],
    sizes: tuple[Sequence[float], bytes],
    worker_number: Mapping[str, int],
) -> OperandGraph:
    """Return the graph of the tasks that are to be computed.

    Parameters
    ----------
    tasks
        The tasks, each after those it reads.
    sizes
        Size of each task's result in bytes, and a 1 for each that is more than a guess.
    worker_number
        Number of each worker, by address, for `OperandGraph.home`.

    Raises
    ------
    ValueError
        A task comes before one that it reads.
    """
    get = {ts: i for i, ts in enumerate(tasks)}.get
    starts, flat = [0], []
    home = [NO_HOME] * len(tasks)
    home_bytes = [0.0] * len(tasks)
    for i, ts in enumerate(tasks):
        dependencies = ts.dependencies
        if dependencies:
            own = [j for dts in dependencies if (j := get(dts)) is not None]
            if len(own) > 1:
                own.sort()
            flat.extend(own)
            if len(own) < len(dependencies):
                home[i], home_bytes[i] = _home(ts, worker_number)
        starts.append(len(flat))
    keys = [ts.key for ts in tasks]
    return OperandGraph(keys, Edges(starts, flat), *sizes, home, home_bytes)


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
    return held({dts: dts.get_nbytes() for dts in ts.dependencies})


def held(sizes: Mapping[TaskState, N]) -> dict[WorkerState, N]:
    """Return the sum of the sizes of the results that each worker holds."""
    there: dict[WorkerState, N] = {}
    for dts, size in sizes.items():
        for ws in dts.who_has or ():
            there[ws] = there[ws] + size if ws in there else size
    return there


def held_by_host(sizes: Mapping[TaskState, float]) -> dict[str, float]:
    """Return the sum of the sizes of the results that each host holds, copies counted once."""
    there: dict[str, float] = {}
    for dts, size in sizes.items():
        for host in {ws.host for ws in dts.who_has or ()}:
            there[host] = there.get(host, 0) + size
    return there


def fetches(ts: TaskState, n_workers: int, bandwidth: float) -> dict[TaskState, float]:
    """Return what it costs a task to read each of its inputs where they are not, in bytes.

    Of an input that so many tasks wait for that each worker would read it several times (a model
    that is applied to all chunks), a worker fetches one copy for all of those. That is as good as
    nothing where copying takes less time than to have all the work where the copies are by now.

    Parameters
    ----------
    ts
        The task. Its inputs are in memory.
    n_workers
        Number of workers that share the tasks.
    bandwidth
        Bytes a second between workers.
    """
    costs: dict[TaskState, float] = {}
    for dts in ts.dependencies:
        costs[dts] = size = dts.get_nbytes()
        waiters = len(dts.waiters or ())
        if waiters < _OFTEN * n_workers:
            continue
        each = duration(ts)
        if each is None:
            costs[dts] = size * n_workers / waiters
            continue
        threads = sum(ws.nthreads for ws in dts.who_has or ()) or 1
        if _WORTH_COPYING * size / bandwidth <= waiters * each / threads:
            costs[dts] = 0
    return costs


def met_bytes(ts: TaskState, workers: Collection[WorkerState]) -> dict[WorkerState, int]:
    """Return how many bytes of what a task's result is read together with each worker has.

    Those are results in memory on one of these workers, or that it is about to make.
    """
    there = dict.fromkeys(workers, 0)
    if len(ts.dependents) > _MOST_MET:
        return there
    for dependent in ts.dependents:
        if len(dependent.dependencies) > _MOST_MET:
            continue
        for other in dependent.dependencies:
            if other is ts:
                continue
            for ws in other.who_has or (other.processing_on,):
                if ws in there:
                    there[ws] += other.get_nbytes()
    return there


def read_elsewhere(
    ts: TaskState, size: Callable[[TaskState], float], planned: Callable[[TaskState], Any]
) -> bool:
    """Return whether another worker of the host will read the result of a task that runs.

    A task is taken to run where most of its input bytes are or are going to be; where as many
    are elsewhere it may as well be read here.

    Parameters
    ----------
    ts
        The task.
    size
        Of a result, bytes, also where it is not there yet.
    planned
        The address of the worker that will run a task that has not been sent; None if not known.
    """
    own = ts.processing_on
    if own is None or len(ts.dependents) > _MOST_MET:
        return False
    for dependent in ts.dependents:
        inputs = dependent.dependencies
        if not 1 < len(inputs) <= _MOST_MET:
            continue
        there: dict[str, float] = {}
        for dts in inputs:
            workers = dts.who_has or ((dts.processing_on,) if dts.processing_on else ())
            addresses = [ws.address for ws in workers if ws.host == own.host] or [planned(dts)]
            for address in addresses:
                if address is not None:
                    there[address] = there.get(address, 0) + size(dts)
        if max(there.values()) > there[own.address]:
            return True
    return False


def input_bytes_on(ts: TaskState, ws: WorkerState) -> tuple[float, float]:
    """Return how many bytes of a task's inputs one worker holds, and how many there are."""
    here = everywhere = 0
    for dts in ts.dependencies:
        size = dts.get_nbytes()
        everywhere += size
        if dts.who_has and ws in dts.who_has:
            here += size
    return here, everywhere


def candidate(
    ws: WorkerState, held: float, met: float = 0.0, *, backlog: bool = False
) -> Candidate:
    """Describe a worker to a placement policy; its backlog only where it is asked for."""
    nthreads = ws.nthreads or 1
    return Candidate(
        ws.address,
        held,
        (len(ws.processing) - len(ws.long_running)) / nthreads,
        ws.nbytes / ws.memory_limit if ws.memory_limit else float(ws.nbytes),
        ws.occupancy / nthreads if backlog else 0.0,
        met,
    )


def restricted(ts: TaskState) -> str | None:
    """Return why the user, not a policy, decides where a task runs, or None."""
    if ts.worker_restrictions or ts.host_restrictions or ts.resource_restrictions:
        return "restricted to workers, hosts or resources"
    if ts.actor:
        return "actor"
    return None


def releases_work(ws: WorkerState, given: Collection[TaskState] = ()) -> bool:
    """Return whether what a worker has, and is given now, makes other tasks ready when done."""
    processing = ws.processing
    for ts in chain(processing, given):
        dependents = ts.dependents
        if len(dependents) > _MOST_DEPENDENTS:
            return True
        for dependent in dependents:
            waiting_on = dependent.waiting_on
            if waiting_on and all(o in processing or o in given for o in waiting_on):
                return True
    return False


def duration(ts: TaskState) -> float | None:
    """Return the mean duration in seconds of tasks like this one, None if none has run."""
    mean: Any = ts.prefix.duration_average
    return float(mean) if mean >= 0 else None


def busy_for(ws: WorkerState) -> float:
    """Return for how many seconds all threads of a worker were busy at its last heartbeat."""
    return min(ws.executing.values()) if len(ws.executing) >= ws.nthreads else 0.0


def mean_nbytes(ts: TaskState) -> float:
    """Return the mean size in bytes of results of tasks like this one; inf if there is none."""
    prefix = ts.prefix
    done = sum(prefix.states.get(state, 0) for state in ("memory", "released", "forgotten"))
    return prefix.nbytes_total / done if done else float("inf")
