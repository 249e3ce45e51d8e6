"""Interrupting what runs on a worker and was cancelled.

Python cannot end a thread. It can have an exception raised in one, at the next instruction of
Python that the thread executes: a loop in Python ends at once, a single long call of C when it
returns.

That exception must not come late, when the thread runs something else, or it would end a thread of
the pool with what it holds. So each task runs inside a guard: nothing is sent to it once it has
ended, and what was sent arrives inside.

What may write, hold a lock or talk to a server runs to its end, as in stock Dask, unless its user
has annotated it or asks for it as it is cancelled.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

from dask.typing import Key
from distributed import Reschedule, Worker
from distributed.metrics import time
from distributed.worker_state_machine import RescheduleEvent

from dask_marsched.host.contract import demand
from dask_marsched.host.graph.task_effects import Effects, effects
from dask_marsched.host.worker.input_release import consume, leave_out_of_tracebacks, runs_in_thread

_raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in_thread.argtypes = (ctypes.c_ulong, ctypes.py_object)
_raise_in_thread.restype = ctypes.c_int
#: Turns of a loop, at each of which what was sent to a thread may arrive.
_TURNS = 100
#: Stimuli (the first is Dask's own) of which what is released was cancelled, or has a result by
#: now. What nobody wants any more since a future was dropped, or a client closed, runs to its end:
#: it may write somewhere.
CANCEL, SECOND_RUN = "cancel-key", "marsched-second-run"
#: A cancel by which all that runs is interrupted, whatever it does.
INTERRUPT = f"{CANCEL}-interrupt"


class ExecutionInterrupted(BaseException):  # a request like KeyboardInterrupt
    """Raised in a task that is cancelled while it runs.

    Not an `Exception`: what handles errors is not to handle this. A task may catch it to clean
    up, and should raise it again.
    """


class Guard:
    """A task's computation that can be interrupted while it runs, and not a moment longer.

    Parameters
    ----------
    compute
        The computation, of the data of its inputs.

    Notes
    -----
    At most one exception is sent from outside. Where it arrives decides nothing: in the
    computation, or in the guard itself before `_leave` has taken the lock, it is caught below;
    after that there is none on its way.
    """

    is_coro = False

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self.compute = compute
        self.sent = False
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._unwanted = False
        self._done = False

    def __call__(self, data: Any) -> Any:
        """Compute.

        Raises
        ------
        Reschedule
            It was interrupted. For a worker that is right whatever has become of the task
            meanwhile: one that is cancelled is dropped, one that was submitted again runs again.
        """
        try:
            self._enter()
            try:
                return consume(self.compute, data)
            finally:
                self._leave()
        except ExecutionInterrupted:
            self._leave()
        # Outside of the handler: the exception with the frames of the task is let go.
        raise Reschedule

    def interrupt(self) -> bool:
        """Have the computation end; False if it has ended or was told before."""
        with self._lock:
            if self._done or self._unwanted:
                return False
            self._unwanted = True
            if self._thread is not None:
                self.sent = True
                _raise_in_thread(self._thread, ExecutionInterrupted)
            return True

    def _enter(self) -> None:
        with self._lock:
            if not self._unwanted:
                self._thread = threading.get_ident()
                return
        raise ExecutionInterrupted

    def _leave(self) -> None:
        with self._lock:
            if not self._done:
                self._done = True
                if self.sent:
                    self._have_it_arrive()

    def _have_it_arrive(self) -> None:
        """Have none on its way.

        Whether it has arrived nobody can tell: the task may have swallowed it. One more takes the
        place of what is on its way, if anything is, and arrives here. To take it back instead,
        which Python offers, would leave the interpreter looking for it for ever: CPython 3.11
        hangs then in the next function that a debugger or a measurement of coverage follows.
        """
        try:
            while True:
                _raise_in_thread(threading.get_ident(), ExecutionInterrupted)
                for _ in range(_TURNS):
                    pass
        except ExecutionInterrupted:
            return

    def __repr__(self) -> str:
        return repr(self.compute)  # what distributed logs of a task that fails


leave_out_of_tracebacks(Guard.__call__)


def misfits(worker: Any) -> list[str]:
    """Return what in a worker is not as interrupting expects it; empty if all is well."""
    names = ("state", "stream_handlers", "execute", "executors")
    found = [f"Worker has no attribute {n}" for n in names if not hasattr(worker, n)]
    if "free-keys" not in getattr(worker, "stream_handlers", {}):
        found.append("the worker has no stream handler 'free-keys'")
    if getattr(worker, "nanny", None) is not None and not hasattr(worker.state, "tasks"):
        found.append("the worker's state has no tasks")
    return found


class Interrupts:
    """Interrupts the tasks of a worker that the scheduler has released while they run.

    Parameters
    ----------
    worker
        The worker.

    Attributes
    ----------
    interrupted : int
        Executions that were told to end.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker: Any = worker
        self.interrupted = 0
        self._running: dict[Key, Guard] = {}
        self._installed = False

    def install(self) -> None:
        """Run tasks inside guards, and listen to what the scheduler releases.

        Raises
        ------
        RuntimeError
            This version of distributed is not as expected; nothing has been changed.
        """
        demand(misfits(self.worker), "running tasks are not interrupted")
        worker = self.worker
        self._own_execute = vars(worker).get("execute")
        self._stock_execute = worker.execute
        self._stock_free_keys = worker.stream_handlers["free-keys"]
        worker.execute = self._execute
        worker.stream_handlers["free-keys"] = self._free_keys
        self._installed = True

    def uninstall(self) -> None:
        """Restore the worker. Idempotent."""
        if not self._installed:
            return
        self._installed = False
        worker = self.worker
        worker.stream_handlers["free-keys"] = self._stock_free_keys
        if self._own_execute is None:
            del worker.execute
        else:
            worker.execute = self._own_execute

    def report(self) -> dict[str, Any]:
        """Return counts, as plain values for JSON."""
        return {"interrupted": self.interrupted, "still_running": len(self.under_way())}

    def under_way(self) -> list[Key]:
        """Return the keys of what was told to end and still runs."""
        return [key for key, guard in self._running.items() if guard.sent]

    async def _execute(self, key: Key, *, stimulus_id: str) -> Any:
        ts = self.worker.state.tasks[key]
        if ts.state == "cancelled":
            # Between the decision to run it and this moment. Stock Dask would run it.
            return RescheduleEvent(key=key, stimulus_id=f"marsched-interrupted-{time()}")
        if not runs_in_thread(self.worker, ts):
            return await self._stock_execute(key, stimulus_id=stimulus_id)
        spec = ts.run_spec
        guard = ts.run_spec = Guard(spec)
        self._running[key] = guard
        try:
            return await self._stock_execute(key, stimulus_id=stimulus_id)
        finally:
            if ts.run_spec is guard:  # else it was submitted again
                ts.run_spec = spec
            if self._running.get(key) is guard:
                del self._running[key]

    def _free_keys(self, keys: Collection[Key], **kwargs: Any) -> None:
        self._stock_free_keys(keys=keys, **kwargs)
        if not str(kwargs.get("stimulus_id")).startswith((CANCEL, SECOND_RUN)):
            return
        tasks = self.worker.state.tasks
        asked = str(kwargs["stimulus_id"]).startswith(INTERRUPT)
        for key in keys:
            guard = self._running.get(key)
            if guard is None or tasks[key].state != "cancelled":
                continue
            if asked or may_be_stopped(guard.compute, tasks[key].annotations):
                self.interrupted += guard.interrupt()


def may_be_stopped(spec: Any, annotations: Mapping[str, Any] | None) -> bool:
    """Whether it does no harm to have a task end in the middle."""
    # A kernel stands for a task while that runs.
    return effects(getattr(spec, "_task", spec), annotations) is Effects.NONE
