"""Holds back a worker's messages that nobody waits for, and sends them before its next one.

These are answers to freed keys, and announcements of results for the case that the worker dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from dask.typing import Key
from distributed import Worker

from dask_marsched.host.contract import demand, misfits_of_paths
from dask_marsched.host.replacements import Replacements
from dask_marsched.host.scheduler.adopters import KEPT

#: Longest delay of an answer, and of an announcement, in seconds. Sent alone, announcements were a
#: third of a worker's messages where tasks took 10 ms.
PATIENCE, ANNOUNCED_WITHIN = 1.0, 0.05

_RELEASED = "release-worker-data"
#: Messages by which the scheduler frees keys. It does not need the answers, which were half of its
#: messages and a quarter of its time in simulation.
FREEING = ("free-keys", "remove-replicas")


class DeferredMessages:
    """Holds back answers about freed keys, and announcements, until the next message."""

    def __init__(
        self,
        send: Callable[[dict[str, Any]], object],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._send = send
        self._later = later
        self._held: list[dict[str, Any]] = []
        self._freed: Collection[Key] = ()
        self._stored: set[Key] = set()
        #: The delays for which a timer runs.
        self._due: set[float] = set()
        #: number of answers held back
        self.gathered = 0

    @contextmanager
    def freeing(self, keys: Collection[Key]) -> Iterator[None]:
        """Hold back the answers about these keys that are sent in this context."""
        self._freed = frozenset(keys)
        try:
            yield
        finally:
            self._freed = ()

    def send(self, message: dict[str, Any]) -> None:
        """Hold a message back, or send it after those held back."""
        if message["op"] == _RELEASED:
            key = message["key"]
            if key in self._freed and key not in self._stored:
                self.gathered += 1
                return self._hold(message, PATIENCE)
            self._stored.discard(key)
        elif message.get("topic") == KEPT:
            return self._hold(message, ANNOUNCED_WITHIN)
        self.flush()
        self._send(message)

    def stored(self, keys: Collection[Key]) -> None:
        """Send the next answers about these keys at once, and drop those held back.

        The data came on another connection than the answers. One that came late would tell the
        scheduler that data is gone that was scattered again.
        """
        self._stored.update(keys)
        self._held = [message for message in self._held if message.get("key") not in self._stored]

    def flush(self) -> None:
        """Send the answers held back."""
        held, self._held = self._held, []
        for message in held:
            self._send(message)

    def _hold(self, message: dict[str, Any], patience: float) -> None:
        self._held.append(message)
        if patience not in self._due:
            self._due.add(patience)
            self._later(patience, partial(self._overdue, patience))

    def _overdue(self, patience: float) -> None:
        self._due.discard(patience)
        self.flush()


def misfits(worker: Any) -> list[str]:
    """Return how a worker differs from what the deferral expects; empty if it does not."""
    handlers = getattr(worker, "stream_handlers", {})
    found = [f"the worker has no stream handler {op!r}" for op in FREEING if op not in handlers]
    if "update_data" not in getattr(worker, "handlers", {}):
        found.append("the worker has no handler 'update_data'")
    functions = {"worker.batched_send": (), "worker.update_data": ("data",)}
    return found + misfits_of_paths(worker, {}, functions)


class MessageDeferral:
    """Installs a `DeferredMessages` in a worker."""

    def __init__(self, worker: Worker) -> None:
        self.worker: Any = worker
        self._deferred: DeferredMessages | None = None
        self._timers: dict[float, asyncio.TimerHandle] = {}
        self._undo = Replacements()

    def install(self) -> None:
        """Intercept messages that free keys, and those sent; RuntimeError on a misfit."""
        worker, undo = self.worker, self._undo
        demand(misfits(worker), "messages that nobody waits for are not delayed")
        deferred = self._deferred = DeferredMessages(worker.batched_send, self._call_later)

        def free(stock: Callable[..., Any], keys: Collection[Key], **kwargs: Any) -> Any:
            with deferred.freeing(keys):
                return stock(keys=keys, **kwargs)

        def update_data(data: dict[Key, object], **kwargs: Any) -> Any:
            deferred.stored(data.keys())
            return stock_update(data=data, **kwargs)

        for op in FREEING:
            undo.entry(worker.stream_handlers, op, partial(free, worker.stream_handlers[op]))
        undo.attribute(worker, "batched_send", deferred.send)
        # Called for data that a client scatters, and for copies that the scheduler asks for.
        stock_update = undo.entry(worker.handlers, "update_data", update_data)
        undo.attribute(worker, "update_data", update_data)

    def uninstall(self) -> None:
        """Send what is held back, and restore the worker. Idempotent."""
        if self._deferred is None:
            return
        for timer in self._timers.values():
            timer.cancel()
        self._deferred.flush()
        self._deferred = None
        self._undo.close()

    def report(self) -> dict[str, Any]:
        """Return counts, as plain values for JSON."""
        return {"answers": self._deferred.gathered if self._deferred is not None else 0}

    def _call_later(self, seconds: float, call: Callable[[], None]) -> None:
        # There is one timer at a time for each delay: the next is started after this one has fired.
        self._timers[seconds] = asyncio.get_running_loop().call_later(seconds, call)
