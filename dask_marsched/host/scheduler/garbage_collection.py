"""Pauses the garbage collector while a graph is read and planned: it found nothing to free."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_users = 0
_was_on = False


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector until the last thread has left this context."""
    global _users, _was_on
    with _lock:
        if not _users:
            _was_on = gc.isenabled()
            gc.disable()
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users and _was_on:
                gc.enable()
