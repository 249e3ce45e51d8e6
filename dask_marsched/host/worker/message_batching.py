"""Answers of workers that nobody waits for travel with their next message.

A worker answers each result that the scheduler frees: it does not hold it any more. The scheduler
has struck it off already, and in simulation these answers were half of all messages to it and a
quarter of its time, for most come alone: a batch of messages costs more than a message. So they
wait for the next message of their worker. All arrive in the order in which they were made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from dask.typing import Key
from distributed import Worker

from dask_marsched.host.contract import demand

#: Seconds that an answer waits at most, where its worker has nothing else to say.
PATIENCE = 1.0

_RELEASED = "release-worker-data"
#: Messages of the scheduler by which it frees results that it has struck off.
FREEING = ("free-keys", "remove-replicas")


class ReleaseBatcher:
    """Holds back a worker's answers until it sends something else.

    Parameters
    ----------
    send
        Sends a message to the scheduler.
    later
        Calls a function after so many seconds.

    Attributes
    ----------
    gathered : int
        Answers that were held back.
    """

    def __init__(
        self,
        send: Callable[[dict[str, Any]], object],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._send = send
        self._later = later
        self._held: list[dict[str, Any]] = []
        self._freed: Collection[Key] = ()
        self._due = False
        self.gathered = 0

    @contextmanager
    def freeing(self, keys: Collection[Key]) -> Iterator[None]:
        """Hold back what is answered inside about these keys."""
        self._freed = frozenset(keys)
        try:
            yield
        finally:
            self._freed = ()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, after the answers held back, or hold it back."""
        if message["op"] == _RELEASED and message["key"] in self._freed:
            self._held.append(message)
            self.gathered += 1
            if not self._due:
                self._due = True
                self._later(PATIENCE, self._overdue)
            return
        self.flush()
        self._send(message)

    def flush(self) -> None:
        """Send the answers held back."""
        held, self._held = self._held, []
        for message in held:
            self._send(message)

    def _overdue(self) -> None:
        self._due = False
        self.flush()


def misfits(worker: Any) -> list[str]:
    """Return what in a worker is not as gathering expects it; empty if all is well."""
    handlers = getattr(worker, "stream_handlers", {})
    found = [f"the worker has no stream handler {op!r}" for op in FREEING if op not in handlers]
    if not callable(getattr(worker, "batched_send", None)):
        found.append("Worker has no method batched_send")
    return found


class WorkerReleaseBatching:
    """Gathers the answers of a running worker.

    Parameters
    ----------
    worker
        The worker.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker: Any = worker
        self._gathering: ReleaseBatcher | None = None
        self._timer: asyncio.TimerHandle | None = None

    def install(self) -> None:
        """Listen to what the scheduler frees, and to what the worker sends.

        Raises
        ------
        RuntimeError
            This version of distributed is not as expected; nothing has been changed.
        """
        worker = self.worker
        demand(misfits(worker), "messages are not gathered")
        self._gathering = ReleaseBatcher(worker.batched_send, self._call_later)
        self._stock = {op: worker.stream_handlers[op] for op in FREEING}
        for op in FREEING:
            worker.stream_handlers[op] = self._listening(self._gathering, self._stock[op])
        worker.batched_send = self._gathering.send

    def uninstall(self) -> None:
        """Send what is held back, and restore the worker. Idempotent."""
        if self._gathering is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._gathering.flush()
        self._gathering = None
        del self.worker.batched_send
        self.worker.stream_handlers.update(self._stock)

    def report(self) -> dict[str, Any]:
        """Return counts, as plain values for JSON."""
        return {"answers": self._gathering.gathered if self._gathering is not None else 0}

    def _call_later(self, seconds: float, call: Callable[[], None]) -> None:
        # One at a time: the next is asked for when this one has rung.
        self._timer = asyncio.get_running_loop().call_later(seconds, call)

    @staticmethod
    def _listening(gathering: ReleaseBatcher, stock: Callable[..., Any]) -> Callable[..., Any]:
        def handle(keys: Collection[Key], **kwargs: Any) -> Any:
            with gathering.freeing(keys):
                return stock(keys=keys, **kwargs)

        return handle
