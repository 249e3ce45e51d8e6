"""Runs many tiny tasks in a row on one thread of a worker, and reports their results together.

Only the task that a thread has begun counts as running; those that it may take next are still ready
in distributed's state machine, which may release, steal or reorder them. Before each event the
state machine is told what the threads have done since the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from dask.typing import Key
from distributed import Worker
from distributed.core import Status
from distributed.metrics import context_meter, time
from distributed.threadpoolexecutor import thread_state
from distributed.worker import _run_task
from distributed.worker_state_machine import (
    Execute,
    ExecuteFailureEvent,
    ExecuteSuccessEvent,
    SecedeEvent,
    StateMachineEvent,
    TaskState,
)

from dask_marsched.host.contract import demand, misfits_of_paths
from dask_marsched.host.worker.batched_messages import BatchedMessages
from dask_marsched.host.worker.execution_events import event_of
from dask_marsched.host.worker.interrupts import Guard, Interrupts
from dask_marsched.host.worker.tiny_task_rule import TinyTaskRule
from dask_marsched.policies.tiny_tasks import SHORT

#: Ready tasks that the threads may take without asking, and the number below which more are added.
_MOST_OFFERED, _FEW_OFFERED = 512, 64
#: Seconds after which results are reported while a thread is still running tasks.
_REPORT_EVERY = 0.02
#: Bytes of results that are reported at once: they count nowhere until then.
_MOST_BYTES = 4 * 2**20
#: A task that takes this many seconds is the last of its run.
_SLOW = 4 * SHORT


@dataclass(slots=True)
class _Offer:
    """A task with what a thread needs to run it: its ``run_spec``, maybe guarded, and inputs."""

    ts: TaskState
    task: Any
    spec: Any
    data: dict[Key, Any]
    run_id: int


@dataclass(slots=True, eq=False)
class _Run:
    """The tasks that one thread runs in a row."""

    current: _Offer | None
    context: contextvars.Context = field(default_factory=contextvars.Context)
    closed: bool = False
    nbytes: int = 0
    fatal: BaseException | None = None
    #: seconds and the like with activity and label, as distributed's workers measure tasks
    measured: deque[tuple[tuple[Any, ...], float]] = field(default_factory=deque)

    def measure(self, label: Any, value: float, unit: str) -> None:
        """Add what `distributed.metrics.context_meter` measured for the current task."""
        assert self.current is not None
        ts = self.current.ts
        self.measured.append((("execute", ts.span_id, ts.prefix, label, unit), value))


class TaskRuns:
    """Replaces the execution of tiny tasks on a worker on which the quota is in force.

    `at_ease` returns whether memory is so plentiful that tiny tasks need not be admitted one by
    one. `retain` is called with each result. `caught` is called with exceptions; tasks are executed
    one by one from then on.
    """

    def __init__(
        self,
        worker: Worker,
        interrupts: Interrupts | None,
        at_ease: Callable[[], bool],
        retain: Callable[[ExecuteSuccessEvent], None],
        caught: Callable[[str, Exception], None],
    ) -> None:
        self.worker: Any = worker
        self.state: Any = worker.state
        #: numbers of runs, and of the tasks in them
        self.counts = {"runs": 0, "tasks": 0}
        self._interrupts = interrupts
        self._retain = retain
        self._caught = caught
        self._rule = TinyTaskRule(worker, at_ease)
        self._lock = threading.Lock()  # for all below, and for taking offers
        self._offers: OrderedDict[TaskState, _Offer] = OrderedDict()
        # Tasks that threads have begun and ended, and that the state machine has yet to hear of.
        self._begun_since: list[_Offer] = []
        self._ended_since: list[tuple[_Offer, Any]] = []
        self._runs: set[_Run] = set()
        self._idle = asyncio.Event()  # set while there are no runs
        self._idle.set()
        self._timer: asyncio.TimerHandle | None = None
        self._installed = self._failed = False

    def install(self) -> None:
        """Run tiny tasks in a row from now on; RuntimeError on a misfit."""
        demand(misfits(self.worker), "each task is executed alone")
        self._loop = asyncio.get_running_loop()
        self._class = type(self.state)
        self.state.__class__ = _state_with_runs(self._class, self)
        self._messages = BatchedMessages(self.worker)
        self._installed = True

    async def uninstall(self) -> None:
        """Wait for the tasks that have begun, and restore the worker. Idempotent."""
        if not self._installed:
            return
        self._installed = False
        with self._lock:
            self._offers.clear()
        if self.worker.status == Status.closing:
            return  # it waits for its threads itself, and not for ever
        await self._idle.wait()
        self.state.__class__ = self._class

    def report(self) -> dict[str, Any]:
        """Return counts, as plain values for JSON."""
        return dict(self.counts)

    def stimulate(
        self, stock: Callable[..., list[Any]], stims: tuple[StateMachineEvent, ...]
    ) -> list[Any]:
        """Tell the state machine what the threads have done, and then of the events."""
        with self._lock:
            told = self._settle(stock)
            self._watch(stims)
            instructions = self._take_over(stock(*stims)) if stims else []
            self._offer_more()
        return self._messages.packed(told) + instructions

    def _watch(self, stims: Iterable[StateMachineEvent]) -> None:
        """Learn from the results of tasks executed alone, and end the runs of seceding tasks."""
        for stim in stims:
            if isinstance(stim, ExecuteSuccessEvent):
                ts = self.state.tasks.get(stim.key)
                if ts is not None:
                    self._rule.kinds.observe(ts.prefix, stim.stop - stim.start, stim.nbytes)
            elif isinstance(stim, SecedeEvent):
                for run in self._runs:
                    if run.current is not None and run.current.ts.key == stim.key:
                        run.closed = True

    def _settle(self, stock: Callable[..., list[Any]]) -> list[Any]:
        begun, self._begun_since = self._begun_since, []
        ended, self._ended_since = self._ended_since, []
        if not begun and not ended:
            return []
        instructions = self._announce(begun)
        events = [self._event(offer, result) for offer, result in ended]
        for run in self._runs:
            run.nbytes = 0
            measured: dict[tuple[Any, ...], float] = {}
            while run.measured:  # a thread may go on adding
                label, value = run.measured.popleft()
                measured[label] = measured.get(label, 0.0) + value
            for label, value in measured.items():
                self.worker.digest_metric(label, value)
        self.counts["tasks"] += len(events)
        return instructions + self._take_over(stock(*events))

    def _announce(self, begun: list[_Offer]) -> list[Any]:
        """Let the state machine start the tasks that threads have taken.

        Returns its other instructions: it also looks for inputs to fetch.
        """
        state = self.state
        started = {}
        for offer in begun:
            ts = offer.ts
            if state.ready.peek() is ts:
                state.ready.pop()
            else:
                state.ready.discard(ts)
            state.executing.add(ts)
            started[ts] = "executing"
            self._note_begun(offer)
        if not started:
            return []
        instructions = state._transitions(started, stimulus_id=f"marsched-run-{time()}")
        return [made for made in instructions if not isinstance(made, Execute)]

    def _note_begun(self, offer: _Offer) -> None:
        self.worker.active_keys.add(offer.ts.key)  # for heartbeats
        if self._interrupts is not None:
            self._interrupts.began(offer.ts.key, offer.spec)

    def _note_ended(self, offer: _Offer) -> None:
        self.worker.active_keys.discard(offer.ts.key)
        if self._interrupts is not None:
            self._interrupts.ended(offer.ts.key, offer.spec)

    def _event(self, offer: _Offer, result: Any) -> StateMachineEvent:
        ts = offer.ts
        self._note_ended(offer)
        event = event_of(self.worker, ts, offer.run_id, result)
        if isinstance(event, ExecuteSuccessEvent):
            self._rule.kinds.observe(ts.prefix, event.stop - event.start, event.nbytes)
            self._retain(event)
        return event

    def _take_over(self, instructions: list[Any]) -> list[Any]:
        """Run tiny tasks that the state machine wants executed; return the other instructions."""
        left = []
        for instruction in instructions:
            offer = None
            if isinstance(instruction, Execute):
                ts = self.state.tasks[instruction.key]
                offer = self._offers.pop(ts, None) or self._offer(ts)
            if offer is None:
                left.append(instruction)
            else:
                self._start(offer)
        return left

    def _fail(self, offer: _Offer, error: Exception) -> None:
        """Let a task fail that could not be run, as `Worker.execute` does."""
        self._note_ended(offer)
        event = ExecuteFailureEvent.from_exception(
            error, key=offer.ts.key, run_id=offer.run_id, stimulus_id=f"marsched-run-{time()}"
        )
        self.worker.handle_stimulus(event)

    def _start(self, offer: _Offer) -> None:
        run = _Run(offer)
        # The key suppresses the meter of the coroutine that this may be called from.
        with context_meter.add_callback(run.measure, key="async-instruction"):
            run.context = contextvars.copy_context()
        self._runs.add(run)
        self._idle.clear()
        self.counts["runs"] += 1
        offer.ts.start_time = time()
        self._note_begun(offer)
        self.worker.executors["default"].submit(self._work, run)
        if self._timer is None:
            self._timer = self._loop.call_later(_REPORT_EVERY, self._overdue)

    def _overdue(self) -> None:
        self._timer = None
        self._tell()
        if self._runs:
            self._timer = self._loop.call_later(_REPORT_EVERY, self._overdue)

    def _tell(self) -> None:
        if self.worker.status != Status.closed:
            self.worker.handle_stimulus()

    def _offer_more(self) -> None:
        """Offer the next ready tasks to the threads, as far as all of them are tiny."""
        state, offers = self.state, self._offers
        ready = state.ready
        if not self._runs or not ready or state.constrained or not state.running:
            offers.clear()
            return
        # A task that became ready may be more urgent, or an offered one may be gone.
        if offers and (ready.peek() is not next(iter(offers)) or not self._are_ready()):
            offers.clear()
        if len(offers) >= _FEW_OFFERED or len(offers) == len(ready):
            return
        offers.clear()
        for ts in ready.peekn(_MOST_OFFERED):
            offer = self._offer(ts)
            if offer is None:
                break
            offers[ts] = offer

    def _are_ready(self) -> bool:
        """Whether nothing has happened to the offered tasks."""
        return all(
            ts.state == "ready" and ts.run_spec is offer.task and ts.run_id == offer.run_id
            for ts, offer in self._offers.items()
        )

    def _offer(self, ts: TaskState) -> _Offer | None:
        """Return an offer for a tiny task that needs nothing unusual, else None."""
        try:
            if self._installed and not self._failed and self._rule.is_plain(ts):
                data = {dep.key: self.worker.data[dep.key] for dep in ts.dependencies}
                spec = ts.run_spec if self._interrupts is None else Guard(cast(Any, ts.run_spec))
                return _Offer(ts, ts.run_spec, spec, data, ts.run_id)
        except Exception as error:
            self._failed = True
            self._caught("runs", error)
        return None

    # In a thread of the worker's pool:

    def _work(self, run: _Run) -> None:
        worker = self.worker
        offer = run.current
        try:
            while offer is not None:
                # Each in a context of its own, as in Dask.
                result = run.context.copy().run(
                    _run_task,
                    offer.spec,
                    offer.data,
                    worker.execution_state,
                    offer.ts.key,
                    worker.active_threads,
                    worker.active_threads_lock,
                    worker.scheduler_delay,
                )
                offer = self._next(run, offer, result)
        except BaseException as error:  # SystemExit ends the worker, as in Dask
            run.fatal = error
        with contextlib.suppress(RuntimeError):  # the worker has been closed meanwhile
            self._loop.call_soon_threadsafe(self._ended, run)

    def _next(self, run: _Run, offer: _Offer, result: Any) -> _Offer | None:
        """Record a result, and take the next task."""
        with self._lock:
            self._ended_since.append((offer, result))
            run.current = None
            run.nbytes += result.get("nbytes", 0)
            slow = result["stop"] - result["start"] > _SLOW
            proceeds = getattr(thread_state, "proceed", True) and not run.closed and not slow
            if not proceeds or run.nbytes > _MOST_BYTES or not self._offers:
                return None
            _, run.current = self._offers.popitem(last=False)
            run.current.ts.start_time = time()
            self._begun_since.append(run.current)
            if len(self._offers) == _FEW_OFFERED // 2:
                self._loop.call_soon_threadsafe(self._tell)
            return run.current

    def _ended(self, run: _Run) -> None:
        if run.fatal is not None and not isinstance(run.fatal, Exception):
            # Raised twice, as by Dask: the second ends the closing that asyncio begins after the
            # first. A worker that closes would tell its nanny not to start another one.
            self.worker.nanny = None
            self._loop.call_soon(_raise, run.fatal)
            raise run.fatal
        self._tell()
        self._runs.discard(run)
        if run.fatal is not None:
            self._failed = True
            self._caught("runs", run.fatal)
            if run.current is not None:
                self._fail(run.current, run.fatal)
        if not self._runs:
            self._idle.set()


def _raise(error: BaseException) -> None:
    raise error


def misfits(worker: Any) -> list[str]:
    """Return how a worker differs from what runs, and not the quota, expect of it."""
    names = (
        "executors",
        "execution_state",
        "active_keys",
        "active_threads",
        "active_threads_lock",
        "digests",
        "scheduler_delay",
        "threads",
    )
    functions = {"worker.state._transitions": ("recommendations", "stimulus_id")}
    return misfits_of_paths(worker, {"worker": names, "worker.state": ("actors",)}, functions)


def _state_with_runs(stock: type, runs: TaskRuns) -> type:
    class RunningWorkerState(stock):  # type: ignore[misc]  # the base is a variable
        # Without slots of its own its layout is that of the base, as assigning __class__ needs.
        __slots__ = ()

        def handle_stimulus(self, *stims: Any) -> Any:
            return runs.stimulate(super().handle_stimulus, stims)

    return RunningWorkerState
