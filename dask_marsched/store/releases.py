"""Does the work of finalizers, under a lock that they do not wait for.

A finalizer may run in any thread, even inside code that holds the lock. In the thread of a task an
interrupt may arrive in it, and Python ignores the exception and the rest of the finalizer. So what
has ended is first appended to a queue, which happens in C, and no interrupt is let through while
the queue is worked off. A forked process inherits finalizers for its parent's locks and files, and
must not run them.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

logger = logging.getLogger(__name__)


_here = threading.local()
_all: tuple[weakref.ref[Releases], ...] = ()
_all_lock = threading.Lock()


def expect_interrupts(task: Any) -> None:
    """Note that exceptions may arrive in this thread until `expect_none`; the task can delay them.

    See `host.worker.interrupts.Guard`. One that was already scheduled when they are deferred is
    raised at the next call at the latest.
    """
    _here.task = task


def expect_none() -> None:
    """Note that none arrive any more, and make the calls that an interrupt has prevented."""
    _here.task = None
    for reference in _all:
        releases = reference()
        if releases is not None:
            releases.drain()


class _End(weakref.ref[object]):
    """A weak reference that knows what to call at the end of its object."""

    __slots__ = ("call", "in_child", "then")

    call: Callable[[], object]
    in_child: bool
    then: weakref.ref[object]


class Releases:
    """A lock, and a queue of calls to make under it once an object has ended."""

    def __init__(self) -> None:
        global _all  # replaced as a whole, as threads iterate over it
        self._lock = threading.Lock()
        self._ended: deque[_End] = deque()
        self._ends: dict[int, _End] = {}
        self._process = os.getpid()
        with _all_lock:
            _all = (*(r for r in _all if r() is not None), weakref.ref(self))

    def at_end_of(
        self, thing: object, call: Callable[..., object], *args: object, in_child: bool = False
    ) -> None:
        """Call under the lock, soon after an object has ended.

        The object has to keep this one alive. The arguments live as long as it does. Without
        `in_child` a forked process does not make the call.
        """
        then = weakref.ref(thing, self._drain)
        end = _End(thing, self._ended.append)  # called before the older one
        end.call, end.in_child, end.then = partial(call, *args), in_child, then
        self._ends[id(end)] = end

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock, after all calls that are due; raises OSError in a forked process."""
        if os.getpid() != self._process:
            raise OSError("it belongs to the process that this one was forked from")
        try:
            with self._lock:
                self._make_calls()
                yield
        finally:
            self.drain()

    def drain(self) -> None:
        """Make the calls that are due, unless the lock is taken: its holder does then."""
        task = getattr(_here, "task", None)
        if task is None or task.held_back:
            self._drain_now()
            return
        try:
            task.hold_back()
            self._drain_now()
        finally:
            task.let_through()

    def _drain(self, _: object) -> None:
        if self._ended:
            self.drain()

    def _drain_now(self) -> None:
        # The holder checks again after unlocking.
        while self._ended and self._lock.acquire(blocking=False):
            try:
                self._make_calls()
            finally:
                self._lock.release()

    def _make_calls(self) -> None:
        while self._ended:
            end = self._ended.popleft()
            del self._ends[id(end)]
            self._call(end)
            del end  # and its arguments, which may be the last reference to the next one

    def _call(self, end: _End) -> None:
        if end.in_child or os.getpid() == self._process:
            try:
                end.call()
            except Exception:  # it would hit whoever happens to be here
                logger.exception("something in shared memory or on disk was not released")

    def renew_lock(self) -> None:
        """Forget who holds the lock, after a fork."""
        self._lock = threading.Lock()

    def __del__(self) -> None:
        # If an object and this end in one cycle, no weak reference tells.
        for end in list(self._ends.values()):
            self._call(end)


def _in_child() -> None:
    # Another thread of the parent may have held a lock.
    global _here, _all_lock
    _here, _all_lock = threading.local(), threading.Lock()
    for reference in _all:
        releases = reference()
        if releases is not None:
            releases.renew_lock()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_in_child)
