"""Defers the work of finalizers until a lock is free.

A finalizer may run in any thread, even inside code that holds the lock, so it must not wait for it.
A forked process inherits finalizers for its parent's locks and files, and must not run them.
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
    """A lock, and a queue of items to `release` under it; `release` must not raise."""

    def __init__(self, release: Callable[[T], None]) -> None:
        self._release = release
        self._lock = threading.Lock()
        self._waiting: deque[T] = deque()
        self._process = os.getpid()

    def later(self, item: T) -> None:
        """Release an item now, or when the lock is next freed; ignored in a forked process."""
        if os.getpid() != self._process:
            return
        self._waiting.append(item)
        self._drain()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock, after releasing queued items; raises OSError in a forked process."""
        if os.getpid() != self._process:
            raise OSError("it belongs to the process that this one was forked from")
        try:
            with self._lock:
                self._release_waiting()
                yield
        finally:
            self._drain()

    def _drain(self) -> None:
        # If the lock is taken, its holder releases the item: it checks again after unlocking.
        while self._waiting and self._lock.acquire(blocking=False):
            try:
                self._release_waiting()
            finally:
                self._lock.release()

    def _release_waiting(self) -> None:
        while self._waiting:
            self._release(self._waiting.popleft())
