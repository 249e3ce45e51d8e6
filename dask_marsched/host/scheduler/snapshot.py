"""Reads graphs, workers and candidates for the policies from a scheduler's state."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from dask._task_spec import Task
from distributed.core import Status
from distributed.scheduler import TaskGroup, TaskState, WorkerState

from dask_marsched.core.graph import NO_HOME, Edges, OperandGraph
from dask_marsched.core.plan import WorkerSlot
from dask_marsched.policies.placement import Candidate

N = TypeVar("N", int, float)

#: States of tasks that need no plan: their results exist, or they have failed.
_DONE = frozenset({"memory", "erred", "forgotten"})

#: A new graph is planned with at most this many tasks that it waits for, for each of its own.
_MOST_AWAITED = 8

#: A task with more dependents than this is assumed to make one of them ready.
_MOST_DEPENDENTS = 32

#: An input is shared widely if each worker needs it for as many tasks as this.
_OFTEN = 4
#: Copying a widely shared input pays if its holders need this many times as long for its tasks.
_WORTH_COPYING = 2
#: Longest wait for a worker that has a task's inputs, seconds. Dask's work stealing assumes that
#: fetching one takes so long besides its transfer.
LONGEST_WAIT = 0.1

#: Inputs so many times smaller than the largest bind a task to no worker.
_MUCH_SMALLER = 8

#: Most dependents of a task, and most inputs of each, that are examined for common readers.
_MOST_MET = 8


def worker_slots(workers: Iterable[WorkerState], bound: Mapping[str, int]) -> list[WorkerSlot]:
    """Describe workers; ``bound`` counts initial operands run or bound to run, by address."""
    return [
        WorkerSlot(ws.address, ws.nthreads, ws.memory_limit, bound.get(ws.address, 0), ws.host)
        for ws in workers
    ]


def tasks_to_compute(
    wanted: Iterable[TaskState], touched: Iterable[TaskState] | None = None
) -> list[TaskState]:
    """Return the tasks that must run for the wanted ones, in the scheduler's order of priority.

    User priorities are ignored: they order ready tasks, but do not tell which belong together. If
    no task of a new graph, ``touched``, has begun, all of them must run. Of a graph that waits for
    far more tasks than it has, only its own are returned: in a long line of `Client.submit` each
    call would read all before it.
    """
    most = math.inf
    if touched is not None:
        touched = list(touched)
        if all(ts.state == "released" for ts in touched):
            return in_order(touched)
        most = _MOST_AWAITED * (len(touched) + 1)
    stack = [ts for ts in wanted if ts.state not in _DONE]
    seen = set(stack)
    add, push = seen.add, stack.append
    while stack:
        if len(seen) > most:
            return in_order(ts for ts in touched or () if ts.state not in _DONE)
        for dts in stack.pop().dependencies:
            if dts not in seen and dts.state not in _DONE:
                add(dts)
                push(dts)
    return in_order(seen)


def in_order(tasks: Iterable[TaskState]) -> list[TaskState]:
    """Return the runnable tasks in the scheduler's order of priority."""
    runnable = (ts for ts in tasks if ts.run_spec is not None and ts.priority)
    return sorted(runnable, key=lambda ts: (ts.priority or ())[1:])


def topological(tasks: list[TaskState]) -> list[TaskState]:
    """Sort tasks topologically, as close to the given order as possible."""
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
    """Return the graph of the tasks to compute; raise a ValueError if one precedes one it reads.

    ``sizes`` are results' bytes and a 1 for each that is known; ``worker_number`` is by address.
    """
    get = {ts: i for i, ts in enumerate(tasks)}.get
    starts, flat = [0], []
    home = [NO_HOME] * len(tasks)
    home_bytes = [0.0] * len(tasks)
    pieces = set()
    for i, ts in enumerate(tasks):
        dependencies = ts.dependencies
        if dependencies:
            own = [j for dts in dependencies if (j := get(dts)) is not None]
            if len(own) > 1:
                own.sort()
            flat.extend(own)
            if len(own) < len(dependencies):
                home[i], home_bytes[i] = _home(ts, worker_number)
            elif len(own) == 1 and _cuts_a_piece(ts):
                pieces.add(i)
        starts.append(len(flat))
    keys = [ts.key for ts in tasks]
    edges = Edges(starts, flat)
    return OperandGraph(keys, edges, *sizes, home, home_bytes, pieces=frozenset(pieces))


def _cuts_a_piece(ts: TaskState) -> bool:
    """Whether a task slices a partition by labels, as where data frames are aligned."""
    spec = ts.run_spec
    return type(spec) is Task and getattr(spec.func, "__name__", "") == "boundary_slice"


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
    """Return the cost of fetching each input of a task (all of them in memory), in bytes.

    A worker fetches one copy of a widely shared input (such as a model that is applied to all
    chunks) for all its tasks that read it, so that each of them bears a part of the cost. The cost
    is 0 if copying, at ``bandwidth`` bytes a second, takes less time than computing all these tasks
    on the present holders.
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


def has_inputs_of_its_own(ts: TaskState) -> bool:
    """Return whether a task has an input that few others read."""
    return any(len(dts.dependents) < _OFTEN for dts in ts.dependencies)


def awaited_holders(
    ts: TaskState,
    ws: WorkerState,
    withheld: Callable[[TaskState], int],
    known: dict[tuple[TaskState, ...], list[tuple[WorkerState, float]]],
) -> list[WorkerState]:
    """Return the workers for which a withheld task should wait rather than run on `ws`.

    They hold its largest inputs and, if no task takes longer than its kind did so far, what they
    run and as many tasks like this one as are `withheld` with it will be done in `LONGEST_WAIT`.
    ``known`` keeps the holders of inputs, with their occupancy, as long as no task changes.
    """
    each = duration(ts)
    if each is None:
        return []
    inputs: Collection[TaskState] = ts.dependencies
    if len(inputs) > 1:
        least = max(dts.get_nbytes() for dts in inputs) / _MUCH_SMALLER
        inputs = [dts for dts in inputs if dts.get_nbytes() >= least]
    if any(dts.who_has and ws in dts.who_has for dts in inputs):
        return []
    largest = tuple(inputs)
    holders = known.get(largest)
    if holders is None:
        common = set.intersection(*[dts.who_has or set() for dts in largest]) if largest else ()
        holders = known[largest] = [
            (holder, holder.occupancy) for holder in common if holder.status == Status.running
        ]
    if not holders:
        return []
    to_come = withheld(ts) * each
    return [
        holder
        for holder, occupancy in holders
        if occupancy + to_come <= LONGEST_WAIT * holder.nthreads
    ]


def met_bytes(ts: TaskState, workers: Collection[WorkerState]) -> dict[WorkerState, int]:
    """Return the bytes, present or being computed on each worker, to be read with a task's result.

    These are the other inputs of the task's dependents.
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
    """Return whether another worker of the same machine is expected to read a task's result.

    Readers are expected where most of their input bytes are or will be, and in case of a tie on the
    task's own worker. ``size`` returns a result's bytes, ``planned`` the address of the worker that
    is planned for a task.
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
    """Return the bytes of a task's inputs that one worker holds, and those of all its inputs."""
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
    """Describe a worker to a placement policy; its backlog only on request."""
    nthreads = ws.nthreads or 1
    return Candidate(
        ws.address,
        held,
        (len(ws.processing) - len(ws.long_running)) / nthreads,
        ws.nbytes / ws.memory_limit if ws.memory_limit else float(ws.nbytes),
        expected_work(ws) / nthreads if backlog else 0.0,
        met,
    )


def restricted(ts: TaskState) -> str | None:
    """Return the reason why no policy may place a task, or None."""
    if ts.worker_restrictions or ts.host_restrictions or ts.resource_restrictions:
        return "restricted to workers, hosts or resources"
    if ts.actor:
        return "actor"
    return None


def releases_work(ws: WorkerState, given: Collection[TaskState] = ()) -> bool:
    """Return whether a worker's tasks, with those given to it now, will make others ready."""
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
    """Return the mean duration of tasks of the same prefix, seconds; None if none has run."""
    mean: Any = ts.prefix.duration_average
    return float(mean) if mean >= 0 else None


def busy_for(ws: WorkerState) -> float:
    """Return for how many seconds all threads of a worker had been busy at its last heartbeat."""
    return min(ws.executing.values()) if len(ws.executing) >= ws.nthreads else 0.0


def expected_work(ws: WorkerState) -> float:
    """Return the seconds of work on a worker, by what other tasks of the same layers have taken.

    Tasks of layers of which none has ended count as nothing: a guess is worth no transfer, and
    where they are long, work stealing moves what waits behind them. The mean of a prefix, as Dask
    has it, is such a guess, too: a slice and a merge that was joined into one are both ``getitem``.
    """
    return sum(_mean_duration(ts.group) for ts in ws.processing if ts not in ws.long_running)


def _mean_duration(group: TaskGroup) -> float:
    done = _ended(group.states)
    return group.all_durations["compute"] / done if done else 0.0


def mean_nbytes(ts: TaskState) -> float:
    """Return the mean bytes of results of tasks of the same prefix; inf if there is none."""
    done = _ended(ts.prefix.states)
    return ts.prefix.nbytes_total / done if done else float("inf")


def _ended(states: Mapping[Any, int]) -> int:
    return sum(states.get(state, 0) for state in ("memory", "released", "forgotten"))
