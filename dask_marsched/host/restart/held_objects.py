"""Records what a scheduler holds beside tasks: variables, queues, events, locks, datasets, plugins.

Each kind knows how to read an object's state from the scheduler and how to set it again. Calls that
may change an object mark it; its state goes to the journal with the next changes.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

from distributed.metrics import time
from distributed.protocol import pickle
from distributed.protocol.serialize import Serialized

from dask_marsched.host.contract import demand
from dask_marsched.host.replacements import Replacements
from dask_marsched.host.restart import records
from dask_marsched.host.restart.recorder import Recorder

logger = logging.getLogger("dask_marsched")

#: Things on a scheduler that do not outlive it. Calls that wait for them raise CommClosedError.
NOT_KEPT = ("MultiLock", "events of log_event", "other scheduler plugins that clients registered")
#: Plugins for workers that are registered anew whenever a scheduler starts.
_OWN = frozenset({"marsched", "shuffle"})


class _Kind(NamedTuple):
    """A kind of objects; ``state`` returns None for an object that is gone."""

    state: Callable[[Any, Any], Any]
    restore: Callable[[Any, Any, Any], None]
    handlers: tuple[str, ...]
    #: Names the object, or the objects if it ends with s; empty: there is only one.
    argument: str = "name"


def _queue_state(scheduler: Any, name: Any) -> Any:
    extension = scheduler.extensions["queues"]
    queue = extension.queues.get(name)
    if queue is None:
        return None
    return queue.maxsize, list(queue._queue), extension.client_refcount.get(name, 1)


def _restore_queue(scheduler: Any, name: Any, state: Any) -> None:
    extension = scheduler.extensions["queues"]
    maxsize, items, references = state
    queue: asyncio.Queue[Any] = asyncio.Queue(maxsize=maxsize)
    for item in items:
        queue.put_nowait(item)
        if item["type"] == "Future":
            extension.future_refcount[name, item["value"]] += 1
    extension.queues[name] = queue
    extension.client_refcount[name] = references


def _semaphore_state(scheduler: Any, name: Any) -> Any:
    extension = scheduler.extensions["semaphores"]
    if name not in extension.max_leases:
        return None
    leases = list(extension.leases.get(name, ()))
    return extension.max_leases[name], extension.lease_timeouts[name], leases


def _restore_semaphore(scheduler: Any, name: Any, state: Any) -> None:
    extension = scheduler.extensions["semaphores"]
    extension.max_leases[name], extension.lease_timeouts[name], leases = state
    # Holders have the full time to refresh their leases.
    extension.leases[name] = dict.fromkeys(leases, time())


def _dataset_state(scheduler: Any, name: Any) -> Any:
    found = scheduler.extensions["publish"].datasets.get(name)
    if found is None:
        return None
    data = found["data"]
    if isinstance(data, Serialized):
        data = (data.header, [bytes(frame) for frame in data.frames])
    return data, tuple(found["keys"])


def _restore_dataset(scheduler: Any, name: Any, state: Any) -> None:
    data, keys = state
    if isinstance(data, tuple):
        data = Serialized(*data)
    scheduler.extensions["publish"].datasets[name] = {"data": data, "keys": keys}


def _event_state(scheduler: Any, name: Any) -> Any:
    events = scheduler.extensions["events"]._events
    return True if name in events and events[name].is_set() else None


def _restore_event(scheduler: Any, name: Any, state: Any) -> None:
    scheduler.extensions["events"]._events[name].set()


def _plugins(of: str) -> _Kind:
    where = f"{of}_plugins"
    return _Kind(
        lambda s, name: None if name in _OWN else getattr(s, where).get(name),
        lambda s, name, state: getattr(s, where).__setitem__(name, state),
        (f"register_{of}_plugin", f"unregister_{of}_plugin"),
    )


_KINDS: dict[str, _Kind] = {
    "variable": _Kind(
        lambda s, name: s.extensions["variables"].variables.get(name),
        lambda s, name, state: s.extensions["variables"].variables.__setitem__(name, state),
        ("variable_set", "variable_delete"),
    ),
    "queue": _Kind(
        _queue_state,
        _restore_queue,
        ("queue_create", "queue_put", "queue_get", "queue_release", "queue-future-release"),
    ),
    "event": _Kind(_event_state, _restore_event, ("event_set", "event_clear")),
    "semaphore": _Kind(
        _semaphore_state,
        _restore_semaphore,
        (
            "semaphore_register",
            "semaphore_acquire",
            "semaphore_release",
            "semaphore_close",
            "semaphore_refresh_leases",
        ),
    ),
    "dataset": _Kind(
        _dataset_state, _restore_dataset, ("publish_put", "publish_delete"), argument="names"
    ),
    "metadata": _Kind(
        lambda s, name: dict(s.task_metadata) or None,
        lambda s, name, state: s.task_metadata.update(state),
        ("set_metadata",),
        argument="",
    ),
    "worker plugin": _plugins("worker"),
    "nanny plugin": _plugins("nanny"),
}


def misfits(scheduler: Any) -> list[str]:
    """Return the handlers that are missing in a scheduler."""
    there = {*scheduler.handlers, *scheduler.stream_handlers}
    wanted = [op for kind in _KINDS.values() for op in kind.handlers]
    return [f"the scheduler has no handler {op!r}" for op in wanted if op not in there]


class HeldObjects:
    """Records the objects of one scheduler."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.scheduler: Any = recorder.scheduler
        self._marked: set[tuple[str, Hashable]] = set()
        self._written: dict[tuple[str, Hashable], bytes] = {}
        #: Keys of rows that could not be restored here: another environment may read them.
        self._unread: list[str] = []
        self._undo = Replacements()

    def install(self) -> None:
        """Wrap the calls that change objects, or raise a RuntimeError and change nothing."""
        s = self.scheduler
        demand(misfits(s), "no journal is kept")
        for name, kind in _KINDS.items():
            for op in kind.handlers:
                table = s.handlers if op in s.handlers else s.stream_handlers
                self._undo.entry(table, op, self._marking(name, kind, table[op]))
        self.recorder.before_passing = self._pass_on

    def uninstall(self) -> None:
        """Restore the scheduler. Idempotent."""
        self._undo.close()
        self._marked.clear()

    def restore(self, rows: Iterable[tuple[str, bytes]]) -> None:
        """Set the objects of a journal."""
        for key, row in rows:
            try:
                kind, name, state = pickle.loads(row)
                _KINDS[kind].restore(self.scheduler, name, state)
                self._written[kind, name] = row
            except Exception:
                logger.exception("The journal's %s cannot be restored", key)
                self._unread.append(key)

    def forget_all(self) -> None:
        """Remove all objects from the journal."""
        for kind, name in self._written:
            self.recorder.journal.delete(records.OBJECTS, f"{kind}/{name!r}")
        for key in self._unread:
            self.recorder.journal.delete(records.OBJECTS, key)
        self._written.clear()
        self._unread.clear()

    def metadata_changed(self) -> None:
        """Record the metadata again, which changed without a call."""
        self._marked.add(("metadata", ""))
        self.recorder.changed()

    def _marking(self, name: str, kind: _Kind, stock: Any) -> Any:
        def mark(of: dict[str, Any]) -> None:
            given = of.get(kind.argument, "")
            for one in given if kind.argument.endswith("s") else [given]:
                self._marked.add((name, tuple(one) if isinstance(one, list) else one))
            self.recorder.changed()

        @functools.wraps(stock)
        async def later(*args: Any, **kwargs: Any) -> Any:
            try:
                return await stock(*args, **kwargs)
            finally:
                mark(kwargs)

        @functools.wraps(stock)
        def at_once(*args: Any, **kwargs: Any) -> Any:
            try:
                return stock(*args, **kwargs)
            finally:
                mark(kwargs)

        return later if inspect.iscoroutinefunction(stock) else at_once

    def _pass_on(self) -> None:
        marked, self._marked = self._marked, set()
        for kind, name in marked:
            try:
                self._write(kind, name)
            except Exception as error:  # the others can be written
                self.recorder.caught("journal", error)

    def _write(self, kind: str, name: Any) -> None:
        state = _KINDS[kind].state(self.scheduler, name)
        row = None if state is None else pickle.dumps((kind, name, state))
        if row == self._written.get((kind, name)):
            return
        key = f"{kind}/{name!r}"
        if row is None:
            del self._written[kind, name]
            self.recorder.journal.delete(records.OBJECTS, key)
        else:
            self._written[kind, name] = row
            self.recorder.journal.put(records.OBJECTS, key, row)
