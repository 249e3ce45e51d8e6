"""Lets a client outlive its scheduler: its futures wait until the scheduler is back.

A stock client cancels its futures when the connection breaks. Here it connects again, sends what
the journal of the scheduler may have missed, and names the keys that it wants. Messages are counted
on both sides; the scheduler tells which of them its journal holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections import deque
from collections.abc import Collection, Hashable
from typing import Any

import distributed
from distributed.comm import connect
from distributed.metrics import monotonic

from dask_marsched.config import Settings
from dask_marsched.host.client import patient_calls
from dask_marsched.host.client.patient_calls import PatientCalls, came_back
from dask_marsched.host.contract import explain, misfits_of_attributes, misfits_of_function
from dask_marsched.host.stream_intervals import send_often

logger = logging.getLogger("dask_marsched")

#: Messages to the scheduler that change what it must know. They are counted.
COUNTED = frozenset({"update-graph", "client-desires-keys", "client-releases-keys", "cancel-keys"})
#: Call by which a client asks what a scheduler knows of it.
RESUME = "marsched_resume"
#: Messages of a client: it counts from a number, and wants these keys; whether the session begins.
SESSION = "marsched-session"
#: Messages to a client: begin a session; what the journal holds; the session is over; which of its
#: keys the scheduler does not know.
INVITED, WRITTEN, OVER = "marsched-invited", "marsched-written", "marsched-over"
LOST = "marsched-lost"
#: In the identity of a scheduler that keeps a journal.
KEEPS_JOURNAL = "marsched-journal"

#: Message that the publication of a dataset waits for; the last ones are sent again on return, as
#: only the dead scheduler may have got them.
_FLUSH = "publish_flush_batched_send"
#: Messages that the next scheduler cannot use: the second one has a token of the dead one's.
_NOT_AGAIN = frozenset({"heartbeat-client", "variable-future-received-confirm"})
#: Seconds between two attempts to connect, and the longest that one takes.
_BETWEEN, _PROBED = 0.1, 1.0
_CLOSING = ("closing", "closed")
_FEW_KEYS = 1000  # keys without a future that do no harm
_UNKNOWN = (
    "Client lost the connection to the scheduler, and the scheduler that is there now does not "
    "know its work. Please re-run your work."
)
#: By client. Keys are weak, values hold their client weakly.
_connections = weakref.WeakKeyDictionary[distributed.Client, "ResumableConnection"]()


def misfits(client: Any) -> list[str]:
    """Return how a client differs from what coming back expects; empty if it does not."""
    names = (
        *("_event_handlers", "_gather_keys", "_stream_handlers"),
        *("futures", "scheduler", "scheduler_comm"),
    )
    return [
        *patient_calls.misfits(),
        *misfits_of_attributes("client", client, names),
        *misfits_of_function("client", client, "_send_to_scheduler_safe", ("msg",)),
        *misfits_of_function("client", client, "_reconnect"),
        *misfits_of_function("client", client, "_ensure_connected", ("timeout",)),
        *misfits_of_function("client", client, "_gather_remote", ("direct", "local_worker")),
    ]


def resumable(client: distributed.Client, patience: float) -> ResumableConnection | None:
    """Return the connection of a client that can outlive the scheduler; there is one for each.

    None for a client that differs from what is expected; it stays as it is.
    """
    found = _connections.get(client)
    if found is None:
        if unexpected := misfits(client):
            logger.warning("%s", explain(unexpected, "the client does not outlive its scheduler"))
            return None
        found = _connections[client] = ResumableConnection(client)
    found.patience = patience
    return found


def prepare_clients(names: Collection[str], patience: float) -> None:
    """Let open clients of this process send often, and be invited to a session."""
    for client in list(getattr(distributed.Client, "_instances", ())):
        if client.id in names and client.status != "closed":
            send_often(client)
            resumable(client, patience)


async def outlive_scheduler(client: Any) -> bool:
    """Begin a session of a client; return whether there is one."""
    connection = resumable(client, Settings.from_config().journal_patience)
    return connection is not None and await connection.begin()


def keeps_journal(client: Any) -> bool:
    """Return whether the scheduler of a client has told that it keeps a journal."""
    return bool(getattr(client, "_scheduler_identity", {}).get(KEEPS_JOURNAL))


class ResumableConnection:
    """Replaces on one client how it sends and reconnects while there is a session.

    Without one, all that is added to the client is handlers of the scheduler's messages.
    """

    def __init__(self, client: distributed.Client) -> None:
        self._client = weakref.ref(client)
        self.patience = 0.0
        self.active = False  #: Whether the scheduler journals what this client sends.
        self.returned = 0
        self._begun = self._known = False
        self._resuming = False
        self._begins = False  #: Whether messages are held back, as the session is about to begin.
        self._number = 0
        self._unwritten: deque[tuple[int, dict[str, Any]]] = deque()
        self._uncounted: list[dict[str, Any]] = []  # sent after those that are held back
        self._flushes: deque[dict[str, Any]] = deque(maxlen=10)
        self._sent: set[Hashable] = set()  # keys that the scheduler should know
        self._calls: PatientCalls | None = None
        client._stream_handlers[INVITED] = self.invited

    @property
    def client(self) -> Any:
        """The client; it exists while its own methods run."""
        return self._client()

    def is_away(self) -> bool:
        """Whether the scheduler is gone and the client waits for it."""
        return self.active and self._resuming

    def begin_soon(self) -> None:
        """Begin a session, from any thread, if none has begun."""
        if not self.active and not self._begun:
            self._begun = True
            self.client.loop.add_callback(self.begin)

    async def begin(self) -> bool:
        """Begin a session; return whether the scheduler keeps a journal."""
        try:
            answer = await getattr(self.client.scheduler, RESUME)(client=self.client.id)
        except OSError:
            self._begun = False  # the next who asks tries again
            raise
        if not answer or answer.get("status") != "OK":
            return False
        if not self.active:
            self.invited()
        return True

    def invited(self) -> None:
        """Begin a session with a scheduler that keeps a journal."""
        client = self.client
        self._unwritten.clear()
        self.active, self._known, self._number = True, False, 0
        self._begins = True
        client._send_to_scheduler_safe = self._send
        client._reconnect = self._reconnect
        client._gather_remote = self._gather_remote
        own = {WRITTEN: self._written, OVER: self._over, LOST: self._lost}
        client._stream_handlers.update(own)
        self._sent = set(client.futures)
        if self._calls is None:
            self._calls = PatientCalls(client.scheduler, self)
        self._calls.install()
        # Messages that were handed to the loop before are sent first, and are not counted.
        client.loop.add_callback(self._start_counting)

    def _start_counting(self) -> None:
        """Begin the session at the scheduler, and send what was held back meanwhile."""
        client, self._begins = self.client, False
        if client is None or not self.active or self._resuming:
            return
        comm = client.scheduler_comm
        if comm is not None and not comm.closed():
            self._introduce(0, begins=True)
            comm.send(*(dict(message) for _, message in self._unwritten), *self._uncounted)
            self._uncounted.clear()

    def _introduce(self, number: int, begins: bool = False) -> None:
        """Tell the scheduler the number of the last message, and all keys that are wanted."""
        client = self.client
        # A future may exist before its graph is sent. One with a type is pending once more: in the
        # outage its result was asked for.
        wanted = [
            key
            for key, state in list(client.futures.items())
            if key in self._sent or state.status != "pending" or state.type is not None
        ]
        client.scheduler_comm.send(
            {"op": SESSION, "number": number, "wants": wanted, "begins": begins}
        )

    def _written(self, number: int) -> None:
        self._known = True
        while self._unwritten and self._unwritten[0][0] <= number:
            self._unwritten.popleft()
        # `Client.restart` drops all futures without a message.
        futures = self.client.futures
        if len(self._sent) > 2 * len(futures) + _FEW_KEYS:
            self._sent = {key for key in self._sent if key in futures}

    def _lost(self, keys: Collection[Hashable], reason: str, msg: str) -> None:
        for key in keys:
            state = self.client.futures.get(key)
            # The error of a graph that could not be read is known here only.
            if state is not None and state.status != "error":
                state.cancel(reason=reason, msg=msg)

    def _over(self) -> None:
        self.active = False
        unsent = [message for _, message in self._unwritten] if self._begins else []
        unsent += self._uncounted
        for name in ("_send_to_scheduler_safe", "_reconnect", "_gather_remote"):
            vars(self.client).pop(name, None)
        if self._calls is not None:
            self._calls.uninstall()
            self._calls = None
        self._unwritten.clear()
        self._uncounted.clear()
        self._sent.clear()
        for message in unsent:
            self.client._send_to_scheduler_safe(message)

    def _send(self, message: dict[str, Any]) -> None:
        client = self.client
        if message["op"] not in COUNTED:
            if message["op"] == _FLUSH:
                self._flushes.append(message)
            if not (self._resuming or self._begins):
                type(client)._send_to_scheduler_safe(client, message)
            elif not (self._resuming and message["op"] in _NOT_AGAIN):
                self._uncounted.append(message)
            return
        keys, messages = message["keys"], [message]
        self._number += 1
        if message.get("client", client.id) != client.id:
            # Of "fire-and-forget": the scheduler counts the next one, which changes nothing.
            messages.append({"op": "client-releases-keys", "keys": [], "client": client.id})
        elif message["op"] in ("update-graph", "client-desires-keys"):
            self._sent.update(keys)
        else:
            self._sent.difference_update(keys)
        self._unwritten += ((self._number, one) for one in messages)
        if client.status in ("running", "closing") and not (self._resuming or self._begins):
            comm = client.scheduler_comm
            if comm is not None and not comm.closed():
                comm.send(*map(dict, messages))

    async def _reconnect(self) -> None:
        client = self.client
        logger.warning(
            "The scheduler at %s is gone; futures wait up to %.0f s for it",
            client.scheduler.address,
            self.patience,
        )
        self._resuming = True
        try:
            back = await self._come_back(monotonic() + self.patience)
        finally:
            self._resuming = False
        if back:
            self.returned += 1
            logger.warning("%s is back at its scheduler", client.id)
        elif client.status not in _CLOSING:
            self._over()
            for state in client.futures.values():
                state.cancel(reason="scheduler-connection-lost", msg=_UNKNOWN)
            client.futures.clear()
            if client.status != "running":
                await client._close()
            elif keeps_journal(client):
                with contextlib.suppress(OSError):
                    await self.begin()

    async def _come_back(self, until: float) -> bool:
        """Connect, and go on with the session; return False if there is nothing to go on with."""
        client = self.client
        while (left := until - monotonic()) > 0 and client.status not in _CLOSING:
            client.status, client.scheduler_comm = "connecting", None
            try:
                # Dask waits ever longer between attempts. A scheduler that listens may still read
                # its journal, and a second registration would end the first.
                probe = await connect(
                    client.scheduler.address, timeout=_PROBED, **client.connection_args
                )
                probe.abort()
                await client._ensure_connected(timeout=left)
                answer = await getattr(client.scheduler, RESUME)(client=client.id)
                number = answer.get("number") if answer else None
                if number is None and (not answer or self._known):
                    return False
                self._go_on_after(number or 0)
                return True
            except (asyncio.TimeoutError, OSError):
                await asyncio.sleep(_BETWEEN)
            except ImportError:
                break
        if client.status not in _CLOSING:
            client.status = "connecting"
        return False

    def _go_on_after(self, number: int) -> None:
        """Send what came after the last message that the scheduler knows.

        As long as the journal has held nothing of a session, all of it is still here.
        """
        client = self.client
        while self._unwritten and self._unwritten[0][0] <= number:
            self._unwritten.popleft()
        client.scheduler_comm.send(*(dict(message) for _, message in self._unwritten))
        self._introduce(self._number)
        for topic in client._event_handlers:
            client.scheduler_comm.send({"op": "subscribe-topic", "topic": topic})
        client.scheduler_comm.send(*self._flushes, *self._uncounted)
        self._uncounted.clear()

    async def _gather_remote(self, direct: bool, local_worker: Any) -> Any:
        client, asked, before = self.client, self.client._gather_keys, self.returned
        try:
            return await type(client)._gather_remote(client, direct, local_worker)
        except OSError:
            while self.active:
                if not await came_back(self, before):
                    raise
                try:
                    return await client.scheduler.gather(keys=list(asked))
                except OSError:
                    before = self.returned
            raise
