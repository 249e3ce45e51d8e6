"""Pauses the garbage collector while a graph is read and planned: there is nothing to free."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Iterator

#: New objects that may be left to the collector, which looks at them for some microseconds.
_FEW_OBJECTS = 500
#: It looks at all objects once more than this many, and more than this share of those alive, were
#: made while it was paused. The share is Python's own rule for its oldest objects.
_MOST_UNSEEN, _SHARE = 100_000, 0.25
#: Seconds after which it looks at all objects although somebody else reads another graph.
_LONGEST = 30.0

_lock = threading.Lock()
_users = 0
_was_on = False
_unseen = _alive = 0
_since = 0.0


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector until the last thread has left this context."""
    global _users, _was_on, _since
    if is_due():
        collect()
    with _lock:
        if not _users:
            _was_on, _since = gc.isenabled(), time.monotonic()
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
            overdue = _users and _was_on and time.monotonic() - _since > _LONGEST
            if overdue:
                _since = time.monotonic()
        if overdue:
            collect()


@contextlib.contextmanager
def cycles_freed() -> Iterator[None]:
    """Free the cycles of objects made in this context, within one that pauses the collector."""
    if not (_users and _was_on):
        yield
        return
    _age()  # so that only objects of this context are looked at
    try:
        yield
    finally:
        gc.collect(0)


def is_due() -> bool:
    """Whether so much was made while the collector was paused that it should look at all."""
    return not _users and gc.isenabled() and _unseen > max(_MOST_UNSEEN, _SHARE * _alive)


def collect() -> None:
    """Free what was made while the collector was paused."""
    global _unseen, _alive
    gc.collect()
    _unseen = 0
    if gc.get_freeze_count() <= _FEW_OBJECTS:
        # `gc.get_objects` refers to each of them: a tuple that another thread was making from an
        # iterator could not grow then, and it raised a SystemError.
        gc.freeze()
        _alive = gc.get_freeze_count()
        gc.unfreeze()


def _age() -> None:
    """Treat all objects as old: the collector would soon look at the new ones twice.

    That held the event loop of a scheduler for 0.3 s after a graph of 50,000 tasks, most of whose
    objects live as long as it runs. What is left in cycles waits for `collect`.
    """
    global _unseen
    young = gc.get_count()[0]
    # `unfreeze` would also free objects that the program has frozen. Python 3.12 itself begins
    # with some hundred.
    if young <= _FEW_OBJECTS or gc.get_freeze_count() > _FEW_OBJECTS:
        return
    _unseen += young
    gc.freeze()
    gc.unfreeze()
