"""Interrupts cancelled tasks that are running, by an exception raised in their thread.

A call into C ends only when it returns. A late exception would end a thread of the pool, so each
task runs inside a guard that receives it. Tasks that may write, hold a lock or talk to a server run
to their end, unless the user has annotated them or asks for an interrupt.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Collection
from typing import Any

from dask.typing import Key
from distributed import Reschedule, Worker
from distributed.metrics import time
from distributed.worker_state_machine import RescheduleEvent

from dask_marsched.host.contract import demand, misfits_of_paths
from dask_marsched.host.graph.task_effects import Effects, effects
from dask_marsched.host.replacements import Replacements
from dask_marsched.host.stimuli import CANCEL, INTERRUPT, SECOND_RUN
from dask_marsched.host.worker.input_release import consume, leave_out_of_tracebacks, runs_in_thread
from dask_marsched.store.releases import expect_interrupts, expect_none

_raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in_thread.argtypes = (ctypes.c_ulong, ctypes.py_object)
_raise_in_thread.restype = ctypes.c_int
#: Seconds after which an interrupt is sent that has to wait, or has to be sent again.
_LATER = 0.01
#: Loop iterations in which a pending exception arrives.
_TURNS = 100

#: By thread: the guard of the task that it runs.
_in_thread: dict[int, Guard] = {}


class ExecutionInterrupted(BaseException):  # a request like KeyboardInterrupt
    """Raised in a cancelled task, which may catch it to clean up, and should raise it again."""


class Guard:
    """Runs a task so that it can be interrupted, but nothing after it can."""

    is_coro = False

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self.compute = compute
        self.sent = False
        #: whether the thread releases memory, where an interrupt would be lost
        self.held_back = False
        self._waits = False
        self._lock = threading.RLock()  # a finalizer may need it inside of `_leave`
        self._thread: int | None = None
        self._unwanted = False
        self._done = False

    def __call__(self, data: Any) -> Any:
        """Compute the result from the inputs' data; raise Reschedule if interrupted."""
        # At most one exception is on its way. It arrives before `_leave` takes the lock, or is
        # cleared there.
        # The worker drops a cancelled task after Reschedule, and reruns a resubmitted one.
        try:
            expect_interrupts(self)
            self._enter()
            try:
                return consume(self.compute, data)
            finally:
                self._leave()
        except ExecutionInterrupted:
            self._leave()
        finally:
            expect_none()
        # Outside of the handler, which would keep the exception with the task's frames.
        raise Reschedule

    def interrupt(self) -> bool:
        """Interrupt the computation; return False if it has ended or was interrupted before."""
        with self._lock:
            if self._done or self._unwanted:
                return False
            self._unwanted = True
            self._send()
            return True

    def _send(self) -> None:
        if self._done or self._thread is None:
            return
        self._waits = self.held_back
        if not self._waits:
            self.sent = True
            _raise_in_thread(self._thread, ExecutionInterrupted)

    def hold_back(self) -> None:
        """Send nothing from now on."""
        with self._lock:
            self.held_back = True

    def let_through(self) -> None:
        """Send interrupts again, also one that was held back."""
        with self._lock:
            self.held_back = False
            if self._waits:
                self._waits = False
                self.send_later()

    def send_later(self) -> None:
        """Send the interrupt soon. At once it would arrive in the finalizer that runs here."""
        threading.Timer(_LATER, self._send_if_running).start()

    def _send_if_running(self) -> None:
        with self._lock:
            self._send()

    def _enter(self) -> None:
        with self._lock:
            if not self._unwanted:
                self._thread = threading.get_ident()
                _in_thread[self._thread] = self
                return
        raise ExecutionInterrupted

    def _leave(self) -> None:
        with self._lock:
            if not self._done:
                self._done = True
                _in_thread.pop(threading.get_ident(), None)
                if self.sent:
                    self._receive_pending()

    def _receive_pending(self) -> None:
        """Make sure that no exception is pending."""
        # It may have arrived already, if the task swallowed it. Another one replaces a pending one,
        # and arrives here. Clearing it through the C API instead makes CPython 3.11 hang in the
        # next function that a debugger or coverage traces.
        try:
            while True:
                _raise_in_thread(threading.get_ident(), ExecutionInterrupted)
                for _ in range(_TURNS):
                    pass
        except ExecutionInterrupted:
            return

    def __repr__(self) -> str:
        return repr(self.compute)  # for distributed's log of failed tasks


leave_out_of_tracebacks(Guard.__call__)


class LostInterrupts:
    """Sends an interrupt again that arrived in a finalizer, where Python ignores exceptions."""

    def __init__(self) -> None:
        self._users = 0
        self._stock: Any = None

    def install(self) -> None:
        """Replace `sys.unraisablehook` for one more user."""
        if not self._users:
            self._stock = sys.unraisablehook
            sys.unraisablehook = self._ignored
        self._users += 1

    def uninstall(self) -> None:
        """Restore it if this was the last user."""
        self._users -= 1
        if not self._users and sys.unraisablehook == self._ignored:
            sys.unraisablehook = self._stock

    def _ignored(self, ignored: Any) -> None:
        guard = _in_thread.get(threading.get_ident())
        if guard is None or ignored.exc_type is not ExecutionInterrupted:
            self._stock(ignored)
        else:
            guard.send_later()


lost_interrupts = LostInterrupts()


def misfits(worker: Any) -> list[str]:
    """Return how a worker differs from what interrupting expects; empty if it does not."""
    names = {"worker": ("execute", "executors"), "worker.state": ("tasks",)}
    found = misfits_of_paths(worker, names, {})
    if "free-keys" not in getattr(worker, "stream_handlers", {}):
        found.append("the worker has no stream handler 'free-keys'")
    return found


class Interrupts:
    """Interrupts running tasks that the scheduler has released; `interrupted` counts them."""

    def __init__(self, worker: Worker) -> None:
        self.worker: Any = worker
        self.interrupted = 0
        self._running: dict[Key, Guard] = {}
        self._undo = Replacements()

    def install(self) -> None:
        """Run tasks inside guards, and intercept freed keys; RuntimeError on a misfit."""
        demand(misfits(self.worker), "running tasks are not interrupted")
        handlers, undo = self.worker.stream_handlers, self._undo
        self._stock_execute = undo.attribute(self.worker, "execute", self._execute)
        self._stock_free_keys = undo.entry(handlers, "free-keys", self._free_keys)
        lost_interrupts.install()
        undo.callback(lost_interrupts.uninstall)

    def uninstall(self) -> None:
        """Restore the worker. Idempotent."""
        self._undo.close()

    def report(self) -> dict[str, Any]:
        """Return counts, as plain values for JSON."""
        return {"interrupted": self.interrupted, "still_running": len(self.under_way())}

    def under_way(self) -> list[Key]:
        """Return the keys of tasks that were interrupted and are still running."""
        return [key for key, guard in self._running.items() if guard.sent]

    def began(self, key: Key, guard: Guard) -> None:
        """Note that a task runs in this guard."""
        self._running[key] = guard

    def ended(self, key: Key, guard: Guard) -> None:
        """Note that a task has ended."""
        if self._running.get(key) is guard:
            del self._running[key]

    async def _execute(self, key: Key, *, stimulus_id: str) -> Any:
        ts = self.worker.state.tasks[key]
        if ts.state == "cancelled":
            # Cancelled since the decision to run it; stock Dask would run it.
            return RescheduleEvent(key=key, stimulus_id=f"marsched-interrupted-{time()}")
        if not runs_in_thread(self.worker, ts):
            return await self._stock_execute(key, stimulus_id=stimulus_id)
        spec = ts.run_spec
        guard = ts.run_spec = Guard(spec)
        self.began(key, guard)
        try:
            return await self._stock_execute(key, stimulus_id=stimulus_id)
        finally:
            if ts.run_spec is guard:  # else it was resubmitted
                ts.run_spec = spec
            self.ended(key, guard)

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
            # A kernel wraps the task that it replaces.
            spec = getattr(guard.compute, "_task", guard.compute)
            if asked or effects(spec, tasks[key].annotations) is Effects.NONE:
                self.interrupted += guard.interrupt()
