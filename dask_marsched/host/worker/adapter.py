"""Lets the quota decide which tasks start, and when; Dask decides wherever the hooks do not."""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from dask.typing import Key
from distributed import Worker
from distributed.comm import get_address_host
from distributed.config import defaults
from distributed.core import Status, context_meter_to_server_digest
from distributed.utils import run_in_executor_with_context
from distributed.worker_state_machine import RescheduleEvent, TaskState, UnpauseEvent

from dask_marsched.fallbacks.counters import Counters
from dask_marsched.host.contract import demand
from dask_marsched.host.replacements import Replacements, weakly
from dask_marsched.host.worker import contract, pauses, shuffle_buffers
from dask_marsched.host.worker.data import WorkerStore
from dask_marsched.host.worker.input_release import (
    InputReleasingTask,
    releases_inputs,
    runs_in_thread,
)
from dask_marsched.host.worker.plain_replies import PlainReply
from dask_marsched.policies.eviction import Resident

logger = logging.getLogger("dask_marsched")

#: Returned by `AdmissionHooks.choose` to let Dask decide.
LEAVE_TO_DASK = "leave to dask"

#: How many ready tasks are searched for one that fits.
LOOKAHEAD = 16

#: States of a task that may be running.
_ON_THREADS = frozenset({"executing", "long-running", "cancelled", "resumed"})
_TO_RUN = frozenset({"waiting", "ready", "constrained", "executing", "resumed"})


class AdmissionHooks(Protocol):
    """Decisions that the adapter asks for, on the event loop. No method may raise."""

    def choose(self, queue: Iterable[TaskState]) -> TaskState | str | None:
        """Return the ready task to start, None to start nothing, or `LEAVE_TO_DASK`."""
        ...

    def fetchable(self) -> float:
        """Return how many bytes may be in flight from other workers; infinity for no limit."""
        ...

    @property
    def counters(self) -> Counters:
        """Those of exceptions in hooks."""
        ...

    def starting(self, ts: TaskState) -> None:
        """Note that a task starts; its inputs are in memory."""

    def finished(self, ts: TaskState) -> None:
        """Note that a task has run; its result is not stored yet."""

    def stimulated(self) -> None:
        """Note that the state machine has handled an event."""

    def may_load(self, nbytes: int) -> bool:
        """Whether this many bytes may be read from disk for another worker."""
        ...

    def may_promote(self, key: Key, nbytes: int) -> bool:
        """Whether a result read from disk moves back to memory."""
        ...


class WorkerAdapter:
    """Connects `AdmissionHooks` to a worker, and bounds the buffers of its shuffles."""

    def __init__(self, worker: Worker, store: WorkerStore, hooks: AdmissionHooks) -> None:
        self.worker: Any = worker
        self.state: Any = worker.state
        self.store = store
        self.hooks = hooks
        self.installed = False
        self.disk = ThreadPoolExecutor(2, thread_name_prefix="marsched-disk")
        self._outgoing: dict[object, Collection[Key]] = {}
        self._promoted: set[Key] = set()
        self._poked = False
        self._undo = Replacements()

    def install(self) -> None:
        """Replace the decisions on starting tasks and fetching; RuntimeError on a misfit."""
        demand(contract.misfits(self.worker), "the worker stays as it is")
        worker, state, store, undo = self.worker, self.state, self.store, self._undo
        self._users_thresholds = _are_users_thresholds(worker.memory_manager)
        if not self._users_thresholds:
            undo.attribute(store, "may_promote", lambda key, _: key in self._promoted)
            # Storing a result must not evict others on the event loop.
            undo.attribute(store.fast, "n", sys.maxsize)
        undo.attribute(store.fast, "most", worker.memory_manager.memory_limit)
        self._incoming_limit = state.transfer_incoming_bytes_limit
        undo.callback(setattr, state, "transfer_incoming_bytes_limit", self._incoming_limit)
        undo.attribute(state, "__class__", _quota_state(type(state), self))
        self._stock_execute = undo.attribute(worker, "execute", self._execute)
        get_data = weakly(self._get_data)
        self._stock_get_data = undo.entry(worker.handlers, "get_data", get_data)
        pauses.install(worker, undo, self.hooks.counters.caught)
        self.installed = True

    async def uninstall(self) -> None:
        """Restore the worker; deferred tasks start as in stock Dask. Idempotent."""
        if not self.installed:
            return
        self.installed = False
        # Pending writes finish first.
        await asyncio.to_thread(self.disk.shutdown)
        self._undo.close()
        self.poke()

    def raise_spill_threshold(self, fraction: float) -> None:
        """Raise the share of the memory limit above which distributed itself spills."""
        manager = self.worker.memory_manager
        if manager.memory_spill_fraction is not False and not self._users_thresholds:
            highest = manager.memory_pause_fraction or 1.0
            least = (fraction + highest) / 2 if fraction < highest else highest
            raised = max(manager.memory_spill_fraction, least)
            self._undo.attribute(manager, "memory_spill_fraction", raised)

    def bound_shuffles(self, nbytes: int) -> None:
        """Bound each buffer of shuffles, bytes (see `shuffle_buffers`)."""
        shuffle_buffers.bound(self.worker, nbytes, self._undo)

    @property
    def memory_limit(self) -> int:
        """The worker's memory limit, bytes; 0 without one."""
        return self.worker.memory_manager.memory_limit or 0

    def resident_memory(self, reclaim: bool = False) -> int:
        """Return the bytes of the process, as distributed measures them.

        `reclaim`: memory that Arrow keeps unused is released first.
        """
        if reclaim:
            pauses.release_unused()
        return int(self.worker.monitor.get_process_memory())

    def counts_unmanaged(self) -> bool:
        """Whether other memory of the process may spill results; the user may forbid it."""
        manager = self.worker.memory_manager
        return not self._users_thresholds or manager.memory_spill_fraction is not False

    def transfers(self) -> int:
        """Return the bytes that transfers take in addition to the results in memory."""
        nbytes: int = self.state.transfer_incoming_bytes
        if not self._outgoing:
            return nbytes
        tasks, copied = self.state.tasks, self.store.takes_more_to_send
        sent = {key for keys in self._outgoing.values() for key in keys}
        return nbytes + sum(tasks[k].nbytes or 0 for k in sent if k in tasks and copied(k))

    def next_fetch(self) -> tuple[int, Any] | None:
        """Return the size in bytes and the priority of the next input to fetch."""
        firsts = [heap.peek() for heap in self.state.data_needed.values() if heap]
        first = min(firsts, key=lambda ts: ts.priority, default=None)
        return (first.get_nbytes(), first.priority) if first is not None else None

    def missing_inputs(self, ts: TaskState) -> int:
        """Return the bytes of a task's inputs that are only on disk."""
        spilled = self.store.is_spilled
        return sum(dep.nbytes or 0 for dep in ts.dependencies if spilled(dep.key))

    def received_bytes(self, ts: TaskState) -> int:
        """Return the bytes that a shuffle has received for a task."""
        return shuffle_buffers.received_bytes(self.worker, ts)

    def ended(self, keys: Iterable[Key]) -> list[Key]:
        """Return those of some admitted tasks that have ended; their results are stored."""
        state, tasks = self.state, self.state.tasks
        # `executing` holds a task from its admission until shortly before it is stored.
        return [
            key
            for key in keys
            if (ts := tasks.get(key)) is None
            or (ts not in state.executing and ts.state not in _ON_THREADS)
        ]

    def are_storing(self, keys: Iterable[Key]) -> bool:
        """Whether one of some admitted tasks has ended, but its result is not stored yet."""
        # distributed looks for the next task before it stores the result of the last one.
        tasks = self.state.tasks
        return any(key in tasks and tasks[key].done for key in keys)

    def releases_inputs(self, key: Any) -> bool:
        """Whether a task releases inputs before it ends."""
        ts = self.state.tasks.get(key)
        return ts is not None and releases_inputs(ts.run_spec)

    def pinned(self) -> set[Key]:
        """Return the results in use, whose eviction would free nothing."""
        running = (*self.state.executing, *self.state.long_running)
        keys = {dep.key for ts in running for dep in ts.dependencies}
        return keys.union(*self._outgoing.values())

    def residents(self) -> list[Resident]:
        """Return the results in memory with their next use."""
        tasks, found = self.state.tasks, []
        for some in self.store.evictable():
            leaving = [tasks[key] for key in some.keys if key in tasks]
            if leaving or some.staying:
                read = [use for ts in leaving if (use := self.next_use(ts)) is not None]
                made = leaving[0].priority if leaving else None
                first = min(read, default=None)
                found.append(Resident(some.keys, some.nbytes, first, made, some.staying))
        return found

    def next_use(self, ts: TaskState) -> Any:
        """Return the first priority of the waiting tasks that read a result, or None."""
        # Readers that still wait on the scheduler are unknown here. Sending them all with each task
        # changed the spilled bytes by less than a tenth.
        readers = (d.priority for d in ts.dependents if d.state in _TO_RUN and d.priority)
        return min(readers, default=None)

    def warn(self, text: str) -> None:
        """Warn in the log and in clients' sessions, as the worker may run out of memory."""
        logger.warning("%s", text)
        self.worker.log_event("warn", text)

    def poke_soon(self) -> None:
        """Schedule `poke` after the current event."""
        if not self._poked:
            self._poked = True
            asyncio.get_running_loop().call_soon(self.poke)

    def poke(self) -> None:
        """Let the state machine check again which tasks can start or be fetched."""
        self._poked = False
        # A paused worker resumes by itself; this event would end the pause early.
        if self.state.running and self.worker.status == Status.running:
            self.worker.handle_stimulus(UnpauseEvent(stimulus_id=f"quota-{time.time()}"))

    def next_ready_task(self, stock: Any) -> TaskState | None:
        """Remove the task to start from its queue and return it, or None."""
        if not self.state.ready and not self.state.constrained:
            return None
        chosen = self.hooks.choose(self._queue())
        if isinstance(chosen, TaskState):
            heap = self.state.ready if chosen in self.state.ready else self.state.constrained
            heap.remove(chosen)
            return chosen
        return stock() if chosen is LEAVE_TO_DASK else None

    def _queue(self) -> Iterator[TaskState]:
        """Return the tasks that distributed would start, in its order."""
        state = self.state
        first = state.constrained.peek() if state.constrained else None
        if first is None or not state._resource_restrictions_satisfied(first):
            return self._ready()
        return heapq.merge(self._ready(), [first], key=lambda ts: ts.priority)

    def _ready(self) -> Iterator[TaskState]:
        ready = self.state.ready
        if ready:
            # Peeking at the first is free; the others need a sort.
            yield ready.peek()
            yield from list(ready.peekn(LOOKAHEAD))[1:]

    def throttles(self, stock: Any) -> bool:
        """Whether no more inputs may be fetched now."""
        state = self.state
        fetchable = self.hooks.fetchable()
        state.transfer_incoming_bytes_limit = min(self._incoming_limit, fetchable)
        return fetchable <= 0 or bool(stock())

    async def _execute(self, key: Key, *, stimulus_id: str) -> Any:
        ts = self.state.tasks[key]
        loaded: dict[Key, object] = {}  # kept until distributed has references
        stand_in = None
        try:
            loaded = await self._load(ts)
            if any(dep.state != "memory" for dep in ts.dependencies):
                # Freed: the task was cancelled, maybe sent again, before it began.
                return RescheduleEvent(key=key, stimulus_id=f"marsched-freed-{time.time()}")
            self.hooks.starting(ts)
            if runs_in_thread(self.worker, ts):
                stand_in = ts.run_spec = InputReleasingTask(ts.run_spec, loaded)
            return await self._stock_execute(key, stimulus_id=stimulus_id)
        finally:
            if stand_in is not None and ts.run_spec is stand_in:  # else it was resubmitted
                ts.run_spec = stand_in.compute
            loaded.clear()
            self.hooks.finished(ts)

    async def _load(self, ts: TaskState) -> dict[Key, object]:
        spilled = [dep for dep in ts.dependencies if self.store.is_spilled(dep.key)]
        if not spilled:
            return {}
        promoted = {d.key for d in spilled if self.hooks.may_promote(d.key, d.nbytes or 0)}
        return await self._read([dep.key for dep in spilled], promoted)

    async def _read(self, keys: list[Key], promoted: Collection[Key] = ()) -> dict[Key, object]:
        self._promoted.update(promoted)
        try:
            return await run_in_executor_with_context(self.disk, _read, self.store, keys)
        except RuntimeError:
            # Uninstalled in the meantime: distributed reads them itself.
            if self.installed:
                raise
            return {}
        finally:
            self._promoted.difference_update(promoted)

    async def _get_data(
        self, comm: Any, keys: Any, who: Any = None, serializers: Any = None
    ) -> Any:
        worker, stock = self.worker, self._stock_get_data
        comm = PlainReply(comm)
        # distributed will tell the peer to retry, so nothing is read for it.
        if worker.transfer_outgoing_count >= _most_sent_at_once(worker, comm):
            return await stock(comm, keys=keys, who=who, serializers=serializers)
        tasks = self.state.tasks
        spilled = [key for key in keys if self.store.is_spilled(key)]
        nbytes = sum(tasks[key].nbytes or 0 for key in spilled if key in tasks)
        if spilled and self._outgoing and not self.hooks.may_load(nbytes):
            return {"status": "busy"}
        token = object()
        self._outgoing[token] = frozenset(keys)
        loaded: dict[Key, object] = {}
        try:
            if spilled:
                # Kept until they are sent, so that distributed need not read them again.
                loaded = await _read_to_send(worker, self._read, spilled)
            return await stock(comm, keys=keys, who=who, serializers=serializers)
        except Exception as error:
            _clear_frames(error)
            raise
        finally:
            loaded.clear()
            del self._outgoing[token]
            self.hooks.stimulated()


@context_meter_to_server_digest("get-data")
async def _read_to_send(worker: Worker, read: Callable[..., Any], keys: list[Key]) -> Any:
    return await read(keys)


def _are_users_thresholds(manager: Any) -> bool:
    """Whether the user has set when to spill. Then this happens as in stock Dask, too."""
    default = defaults["distributed"]["worker"]["memory"]
    chosen = manager.memory_target_fraction, manager.memory_spill_fraction
    return chosen != (default["target"], default["spill"])


def _most_sent_at_once(worker: Any, comm: Any) -> float:
    """Return to how many peers distributed sends at once, if one of them is behind a comm."""
    if worker.status == Status.paused:
        return 1
    most = worker.transfer_outgoing_count_limit
    if most is False:
        return math.inf
    is_near = get_address_host(comm.peer_address) == get_address_host(worker.address)
    return float(2 * most if is_near else most)


def _clear_frames(error: BaseException) -> None:
    """Drop the local variables of an error's frames, which may hold large results."""
    # Dask's log keeps errors of sends for ten thousand lines. All these frames have ended, except
    # for the caller's; clearing a frame that only waits would close it.
    found: BaseException | None = error
    while found is not None:
        traceback.clear_frames(found.__traceback__)
        found = found.__cause__ or found.__context__


def _read(store: WorkerStore, keys: Iterable[Key]) -> dict[Key, object]:
    # Keys that are missing or unreadable are left to distributed, which reports them.
    values, entries = {}, {}
    for key in keys:
        try:
            entries[key] = store.slow.entries.get(key)
            values[key] = store[key]
        except Exception:
            continue
    store.slow.lend(values, entries)
    return values


def _quota_state(stock: type, adapter: WorkerAdapter) -> type:
    class QuotaWorkerState(stock):  # type: ignore[misc]  # the base is a variable
        # Without slots of its own its layout is that of the base, as assigning __class__ needs.
        __slots__ = ()

        def _next_ready_task(self) -> TaskState | None:
            return adapter.next_ready_task(super()._next_ready_task)

        def _should_throttle_incoming_transfers(self) -> bool:
            return adapter.throttles(super()._should_throttle_incoming_transfers)

        def handle_stimulus(self, *stims: Any) -> Any:
            instructions = super().handle_stimulus(*stims)
            adapter.hooks.stimulated()
            return instructions

    return QuotaWorkerState
