"""Pauses the garbage collector while a graph is read and planned: it found nothing to free."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

#: New objects that the collector may pass over: some microseconds.
_FEW = 500
#: New objects that it never sees before it may look at those of a graph.
_MOST_UNSEEN = 20_000_000

_lock = threading.Lock()
_users = 0
_was_on = False
_unseen = 0


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
                _age()
                gc.enable()


@contextlib.contextmanager
def cycles_freed() -> Iterator[None]:
    """Free the cycles of objects made in this context, within one that pauses the collector."""
    if not (_users and _was_on):
        yield
        return
    _age()  # so that only objects of this context are passed over
    try:
        yield
    finally:
        gc.collect(0)


def _age() -> None:
    """Treat all objects as old: the collector would pass over the new ones twice, soon.

    That held the event loop of a scheduler for 0.3 s after a graph of 50,000 tasks. The objects of
    a graph live as long as it runs, and are freed without the collector.
    """
    global _unseen
    young = gc.get_count()[0]
    if young <= _FEW or gc.get_freeze_count():
        return  # what somebody else has frozen stays so
    _unseen += young
    if _unseen > _MOST_UNSEEN:
        _unseen = 0
        return
    gc.freeze()
    gc.unfreeze()
