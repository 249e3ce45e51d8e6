"""Lets a plugin decide in a running `distributed.Scheduler`: `SchedulerAdapter`.

It replaces functions on the scheduler's instance, never on its class. Each replacement falls back
to distributed's own function if the delegate (the plugin) leaves the decision open or fails.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from dask.typing import Key
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.metrics import time
from distributed.scheduler import Scheduler, TaskState, WorkerState

from dask_marsched.fallbacks.counters import Counters
from dask_marsched.host.contract import demand
from dask_marsched.host.graph.fusion import GraphFusion
from dask_marsched.host.graph.task_order import RepeatableOrder
from dask_marsched.host.replacements import Replacements
from dask_marsched.host.scheduler import contract, materialization, task_hints
from dask_marsched.host.scheduler.batched_messages import BatchedMessages
from dask_marsched.host.scheduler.delayed_retries import DelayedRetries
from dask_marsched.host.scheduler.garbage_collection import collector_paused
from dask_marsched.host.scheduler.idle_collection import IdleCollection
from dask_marsched.host.stream_intervals import WorkerStreams

#: Decisions on a ready task other than a worker.
WITHHOLD = "withhold"
LEAVE_TO_DASK = "leave to dask"


class SchedulerDelegate(Protocol):
    """Makes the adapter's decisions. No method of it may raise."""

    #: Why stock scheduling has to take over for good, or None.
    failure: str | None
    counters: Counters

    def graph_arrives(self, tasks: int, sizes: Any, prepared: Any = None) -> None:
        """Record what is known of a graph of so many tasks, which will be created.

        That is sizes of results, and a prepared plan; each may be None.
        """

    def decide(self, ts: TaskState) -> WorkerState | str:
        """Return the worker for a ready task, `WITHHOLD` or `LEAVE_TO_DASK`."""
        ...

    def hints_for(self, ts: TaskState) -> dict[str, Any]:
        """Return the hints (`task_hints`) for the worker that gets a task; empty for none."""
        ...

    def enqueued(self, ts: TaskState) -> None:
        """Record that a task entered the scheduler's queue."""

    def dequeued(self, ts: TaskState) -> None:
        """Record that a task left the scheduler's queue."""

    def dispatch(self) -> list[tuple[TaskState, WorkerState]] | None:
        """Return the queued tasks to send now, with their workers."""

    def redispatch_after(self) -> float:
        """Return the seconds after which to dispatch again if no event comes before, or inf."""
        ...

    def copied(self, worker: str, keys: Iterable[Any]) -> None:
        """Record that a worker has fetched results."""

    def superfluous(self) -> dict[WorkerState, list[TaskState]]:
        """Return replicas that can be dropped, by worker."""
        ...

    def may_steal(self, ts: TaskState) -> bool:
        """Return whether work stealing may consider a task."""
        ...

    def retry_after(self, ts: TaskState, worker: str, error: str) -> float:
        """Return the seconds after which to retry a failed task; inf lets it fail."""
        ...

    def removed(self) -> None:
        """Record that the plugin was removed."""


#: Functions of the scheduler that methods of the adapter replace, by the method's name.
_REPLACED = {
    "_transitions": "transitions",
    "_queue_slots_maybe_opened": "stimulus_queue_slots_maybe_opened",
    "_create_taskstate_from_graph": "_create_taskstate_from_graph",
    "_task_to_msg": "_task_to_msg",
    "_remove_plugin": "remove_plugin",
    "_add_plugin": "add_plugin",
    "_send_all": "send_all",
}


class SchedulerAdapter:
    """Connects a `SchedulerDelegate` to a scheduler.

    Removing ``plugin`` from the scheduler uninstalls the adapter and then calls ``removed``.
    ``failed`` is called after a failing policy has caused the adapter to restore the scheduler.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        delegate: SchedulerDelegate,
        plugin: SchedulerPlugin,
        removed: Callable[[], None] = lambda: None,
        fusion: GraphFusion | None = None,
        order: RepeatableOrder | None = None,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self.scheduler: Any = scheduler
        self.delegate = delegate
        self.plugin = plugin
        self.removed = removed
        self.failed = failed
        self.fusion = fusion
        self.order = order
        self.installed = False
        self._assigned: dict[TaskState, WorkerState] = {}
        self._undispatched = False
        self._dispatching = False
        self._stealing: Any = None
        self._retries = DelayedRetries(scheduler, delegate.retry_after)
        self._redispatch: asyncio.TimerHandle | None = None
        self._messages = BatchedMessages(scheduler)
        self._streams = WorkerStreams(scheduler)
        self._collection = IdleCollection(scheduler, delegate.counters.caught)
        self._undo = Replacements()

    def install(self) -> None:
        """Replace functions of the scheduler, or raise a RuntimeError and change nothing."""
        demand(contract.misfits(self.scheduler), "stock scheduling stays in force")
        s, undo = self.scheduler, self._undo
        table = dict(type(s)._TRANSITIONS_TABLE)
        self._stock: dict[tuple[str, str], Callable[..., Any]] = dict(table)
        for entry in contract.REPLACED_TRANSITIONS:
            table[entry] = getattr(self, f"_{'_'.join(entry)}".replace("-", "_"))
        undo.attribute(s, "_TRANSITIONS_TABLE", table)
        for method, replaced in _REPLACED.items():
            undo.attribute(s, replaced, getattr(self, method))
        undo.entry(s.stream_handlers, "add-keys", self._add_keys)
        self._messages.accept()
        self._streams.install()
        self._retries.install()
        self._collection.install()
        self._stealing = s.extensions.get("stealing")
        if self._stealing is not None:
            undo.attribute(self._stealing, "_get_thief", self._get_thief)
        materialization.patch()
        for part in (self.order, self.fusion):
            if part is not None:
                part.install()
        self.installed = True
        for ts in list(s.queued):
            self.delegate.enqueued(ts)

    def uninstall(self) -> None:
        """Restore the scheduler, which dispatches the queued tasks from then on. Idempotent."""
        if not self.installed:
            return
        self.installed = False
        materialization.unpatch()
        for part in (self.fusion, self.order):
            if part is not None:
                part.uninstall()
        self._undo.close()
        self._streams.uninstall()
        self.delegate.removed()
        if self._redispatch is not None:
            self._redispatch.cancel()
            self._redispatch = None
        self._retries.uninstall()
        self._collection.uninstall()
        s = self.scheduler
        if not s.queued:
            return
        stimulus_id = "marsched-uninstall"
        if math.isinf(s.WORKER_SATURATION):
            # Stock Dask never looks at its queue if queuing is off.
            s.transitions({ts.key: "waiting" for ts in s.queued}, stimulus_id)
        else:
            s.stimulus_queue_slots_maybe_opened(stimulus_id=stimulus_id)

    def worker_joined(self, worker: str) -> None:
        """Send to a new worker as often as to the others."""
        if self.installed:
            self._streams.joined(worker)

    def worker_left(self) -> None:
        """Drop removed workers from work stealing's counts, which stock Dask keeps for ever."""
        # All counts are 0 while no task is being stolen.
        if self._stealing is not None and not self._stealing.in_flight:
            self._stealing.in_flight_tasks.clear()

    def retrying(self) -> set[Key]:
        """Return the keys of the failed tasks that wait for a retry."""
        return self._retries.waiting()

    def _create_taskstate_from_graph(self, *, dsk: Any, ordered: Any, **kwargs: Any) -> Any:
        sizes, prepared = getattr(dsk, "sizes", None), getattr(dsk, "prepared", None)
        self.delegate.graph_arrives(len(dsk), sizes, prepared)
        if self.fusion is not None:
            ordered = self.fusion.reconcile(dsk, ordered, kwargs["keys"])
        s = self.scheduler
        self._collection.schedule()
        with collector_paused():
            return type(s)._create_taskstate_from_graph(s, dsk=dsk, ordered=ordered, **kwargs)

    def _task_to_msg(self, ts: TaskState) -> dict[str, Any]:
        s = self.scheduler
        message: dict[str, Any] = type(s)._task_to_msg(s, ts)
        if hints := self.delegate.hints_for(ts):
            message["annotations"] = {**message["annotations"], task_hints.ANNOTATION: hints}
        return message

    def _transitions(self, recommendations: Any, stimulus_id: str) -> None:
        s = self.scheduler
        type(s).transitions(s, recommendations, stimulus_id)
        if self._undispatched and not self._dispatching:
            # A slot may be free for a task that these transitions withheld, and not every caller
            # looks at the queue afterwards.
            s.stimulus_queue_slots_maybe_opened(stimulus_id=stimulus_id)
        if not self._dispatching:
            self._drop_copies(stimulus_id)

    def _send_all(self, client_msgs: Any, worker_msgs: Any) -> None:
        s = self.scheduler
        type(s).send_all(s, client_msgs, self._messages.packed(worker_msgs))

    def _add_keys(self, worker: str, keys: Any = (), stimulus_id: str | None = None) -> Any:
        result = self.scheduler.add_keys(worker=worker, keys=keys, stimulus_id=stimulus_id)
        self.delegate.copied(worker, keys)
        self._drop_copies(stimulus_id or "marsched-add-keys")
        return result

    def _drop_copies(self, stimulus_id: str) -> None:
        # Only after a stimulus: its own messages may still refer to any of the replicas.
        for ws, tasks in self.delegate.superfluous().items():
            self.scheduler.request_remove_replicas(
                ws.address, [ts.key for ts in tasks], stimulus_id=stimulus_id
            )

    def _queue_slots_maybe_opened(self, *, stimulus_id: str) -> None:
        self._undispatched = False
        if self._dispatching:
            return
        self._dispatch(stimulus_id)
        # A finished task's stimulus ends here and does not pass `_transitions`.
        self._drop_copies(stimulus_id)

    def _dispatch(self, stimulus_id: str) -> None:
        s = self.scheduler
        placed = self.delegate.dispatch() if s.queued and self.delegate.failure is None else None
        if self.delegate.failure is not None:
            if self.installed:
                self.uninstall()
                self.failed()
            return
        if s.queued and self._redispatch is None:
            seconds = self.delegate.redispatch_after()
            if math.isfinite(seconds):
                loop = asyncio.get_running_loop()
                self._redispatch = loop.call_later(seconds, self._overdue)
        if not placed:
            return
        self._dispatching = True
        try:
            self._assigned = dict(placed)
            # Recommendations are processed in last-in, first-out order.
            s.transitions({ts.key: "processing" for ts, _ in reversed(placed)}, stimulus_id)
        finally:
            self._assigned = {}
            self._dispatching = False

    def _overdue(self) -> None:
        self._redispatch = None
        self._queue_slots_maybe_opened(stimulus_id=f"marsched-overdue-{time()}")

    def _remove_plugin(self, name: str | None = None) -> None:
        s = self.scheduler
        removed = s.plugins.get(name)
        type(s).remove_plugin(s, name)
        if removed is self.plugin:
            self.uninstall()
            self.removed()

    def _add_plugin(self, plugin: Any, **kwargs: Any) -> None:
        # A second plugin that is equal to the one in force is not added.
        if getattr(plugin, "duplicate_of", None) is not self.plugin:
            type(self.scheduler).add_plugin(self.scheduler, plugin, **kwargs)

    def _get_thief(self, scheduler: Any, ts: TaskState, *args: Any, **kwargs: Any) -> Any:
        if not self.delegate.may_steal(ts):
            return None
        return type(self._stealing)._get_thief(self._stealing, scheduler, ts, *args, **kwargs)

    def _waiting_processing(self, scheduler: Any, key: Any, stimulus_id: str) -> Any:
        ts = scheduler.tasks[key]
        decision = self.delegate.decide(ts)
        if decision is WITHHOLD:
            return {key: "queued"}, {}, {}
        if isinstance(decision, WorkerState):
            return scheduler._add_to_processing(ts, decision, stimulus_id=stimulus_id)
        return self._stock["waiting", "processing"](scheduler, key, stimulus_id)

    def _waiting_queued(self, scheduler: Any, key: Any, stimulus_id: str) -> Any:
        # As distributed's own, without its assertion that no worker has a free slot: withheld
        # tasks are dispatched at the end of the stimulus, in the order of the plan.
        ts = scheduler.tasks[key]
        if scheduler.validate:
            scheduler._validate_ready(ts)
        ts.state = "queued"
        scheduler.queued.add(ts)
        self._undispatched = True
        self.delegate.enqueued(ts)
        return {}, {}, {}

    def _no_worker_processing(self, scheduler: Any, key: Any, stimulus_id: str) -> Any:
        # Recommended when a worker joins.
        ts = scheduler.tasks[key]
        decision = self.delegate.decide(ts)
        if decision is LEAVE_TO_DASK:
            return self._stock["no-worker", "processing"](scheduler, key, stimulus_id)
        scheduler.unrunnable.pop(ts, None)
        if isinstance(decision, WorkerState):
            return scheduler._add_to_processing(ts, decision, stimulus_id=stimulus_id)
        return self._waiting_queued(scheduler, key, stimulus_id)

    def _queued_processing(self, scheduler: Any, key: Any, stimulus_id: str) -> Any:
        ts = scheduler.tasks[key]
        ws = self._assigned.pop(ts, None)
        if ws is not None:
            scheduler.queued.discard(ts)
            self.delegate.dequeued(ts)
            return scheduler._add_to_processing(ts, ws, stimulus_id=stimulus_id)
        if math.isinf(scheduler.WORKER_SATURATION):
            return {}, {}, {}
        result = self._stock["queued", "processing"](scheduler, key, stimulus_id)
        if ts not in scheduler.queued:
            self.delegate.dequeued(ts)
        return result

    def _queued_released(self, scheduler: Any, key: Any, stimulus_id: str) -> Any:
        self.delegate.dequeued(scheduler.tasks[key])
        return self._stock["queued", "released"](scheduler, key, stimulus_id)

    def _queued_erred(self, scheduler: Any, key: Any, stimulus_id: str, **kwargs: Any) -> Any:
        self.delegate.dequeued(scheduler.tasks[key])
        return self._stock["queued", "erred"](scheduler, key, stimulus_id, **kwargs)
