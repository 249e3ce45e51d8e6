"""Runs the work of finalizers, under a lock that they do not wait for.

A finalizer may run in any thread, even inside code that holds the lock. Where a task may be
interrupted, an exception may arrive in it, and Python would ignore the exception and the rest of
the finalizer. So what has ended is only appended to a queue, which no exception can divide. A
forked process inherits finalizers for its parent's locks and files, and must not run them.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

_here = threading.local()


def leave_to_others() -> None:
    """Make no calls in this thread, where exceptions may arrive, until `release_here`."""
    _here.left = set()


def release_here() -> None:
    """Make calls in this thread again, also those that are due."""
    left, _here.left = _here.left, None
    for releases in left or ():
        releases.drain()


class _End(weakref.ref[object]):
    """Of an object: what to call then."""

    __slots__ = ("call", "then")

    call: Callable[[], object]
    then: weakref.ref[object]


class Releases:
    """A lock, and a queue of calls to make under it once an object has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: deque[_End] = deque()
        self._ends: dict[int, _End] = {}
        self._process = os.getpid()

    def at_end_of(self, thing: object, call: Callable[..., object], *args: object) -> None:
        """Call under the lock, soon after an object has ended; the call must not raise.

        The object has to keep this one alive. The arguments live as long as it does. Ignored in a
        forked process.
        """
        then = weakref.ref(thing, self._drain)
        end = _End(thing, self._ended.append)  # called before the older one
        end.call, end.then = partial(call, *args), then
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
        left: set[Releases] | None = getattr(_here, "left", None)
        if left is not None:
            left.add(self)  # if this is interrupted, the next call of any thread makes them
            return
        if os.getpid() != self._process:
            return
        # The holder checks again after unlocking.
        while self._ended and self._lock.acquire(blocking=False):
            try:
                self._make_calls()
            finally:
                self._lock.release()

    def _drain(self, _: object) -> None:
        self.drain()

    def _make_calls(self) -> None:
        while self._ended:
            end = self._ended.popleft()
            del self._ends[id(end)]
            end.call()
            del end  # and its arguments, which may be the last reference to the next one

    def __del__(self) -> None:
        # If an object and this end in one cycle, no weak reference tells.
        if os.getpid() == self._process:
            for end in self._ends.values():
                end.call()
