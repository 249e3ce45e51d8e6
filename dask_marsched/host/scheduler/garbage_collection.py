"""Pauses the garbage collector while a graph is read and planned: there is nothing to free."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Iterator

#: New objects that may be left to the collector, which looks at them for some microseconds.
_FEW_OBJECTS = 500
#: It looks at all objects once there are more by this many, and by this share, than when it did
#: last. The share is Python's own rule for its oldest objects.
_MOST_MORE, _SHARE = 100_000, 0.25
#: Seconds after which it looks at all objects although somebody else reads another graph.
_LONGEST = 30.0

_lock = threading.Lock()
_users = 0
_was_on = False
_made = _alive = 0  # objects made since the last look, and those that were left by it
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


def may_be_due() -> bool:
    """Whether so many objects were made that `is_due` is worth its time."""
    return _made > _most_more()


def is_due() -> bool:
    """Whether there are so many more objects that the collector should look at all of them."""
    global _made
    if _users or not gc.isenabled() or not may_be_due():
        return False
    more = max(0, _count() - _alive)
    if more > _most_more():
        return True
    # Most are gone, as tasks are when their results are. To count takes a while, so not each time.
    _made = more // 2
    return False


def collect() -> None:
    """Free what was made while the collector was paused."""
    global _made, _alive
    gc.collect()
    _made, _alive = 0, _count()


def _most_more() -> float:
    return max(_MOST_MORE, _SHARE * _alive)


def _count() -> int:
    """Return how many objects the collector knows, 0 if the program has frozen some."""
    if gc.get_freeze_count() > _FEW_OBJECTS:
        return 0
    # `gc.get_objects` refers to each of them: a tuple that another thread was making from an
    # iterator could not grow then, and it raised a SystemError.
    gc.freeze()
    found = gc.get_freeze_count()
    gc.unfreeze()
    return found


def _age() -> None:
    """Treat all objects as old: the collector would soon look at the new ones twice.

    That held the event loop of a scheduler for 0.3 s after a graph of 50,000 tasks, most of whose
    objects live as long as it runs. What is left in cycles waits for `collect`.
    """
    global _made
    young = gc.get_count()[0]
    # `unfreeze` would also free objects that the program has frozen. Python 3.12 itself begins
    # with some hundred.
    if young <= _FEW_OBJECTS or gc.get_freeze_count() > _FEW_OBJECTS:
        return
    _made += young
    gc.freeze()
    gc.unfreeze()
