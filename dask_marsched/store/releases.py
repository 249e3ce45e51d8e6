"""What finalizers leave for others to do.

A finalizer runs wherever the garbage collector does: in any thread, and in the middle of code
that holds a lock. So it must not wait for that lock.

A process that was forked has copies of what its parent had, whose finalizers run there as well.
What they would give back is its parent's: locks and files are those of both.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Releases(Generic[T]):
    """A lock, and what is to be done under it as soon as nobody holds it.

    Parameters
    ----------
    release : callable
        Called under the lock with what was handed to `later`. Must not raise.
    """

    def __init__(self, release: Callable[[T], None]) -> None:
        self._release = release
        self._lock = threading.Lock()
        self._waiting: deque[T] = deque()
        self._process = os.getpid()

    def later(self, item: T) -> None:
        """Release an item now if nobody holds the lock, else before whoever does gives it back.

        In a forked process nothing is released.
        """
        if os.getpid() != self._process:
            return
        self._waiting.append(item)
        self._drain()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock; everything that waits is released first.

        Raises
        ------
        OSError
            In a forked process.
        """
        if os.getpid() != self._process:
            raise OSError("it belongs to the process that this one was forked from")
        try:
            with self._lock:
                self._release_waiting()
                yield
        finally:
            self._drain()

    def _drain(self) -> None:
        # Whoever fails to take the lock leaves the item to its holder, who looks again after
        # having given it back: nothing is left behind.
        while self._waiting and self._lock.acquire(blocking=False):
            try:
                self._release_waiting()
            finally:
                self._lock.release()

    def _release_waiting(self) -> None:
        while self._waiting:
            self._release(self._waiting.popleft())
