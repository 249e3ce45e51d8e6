"""Lets calls about locks, events and variables wait for a scheduler that is started again.

A call that waits on the scheduler fails when that dies, and with it a task that wants a lock, say.
Here calls that only read, or that may take effect twice, are sent again when the scheduler is back.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable
from functools import partial
from typing import Any, Protocol

from dask.utils import parse_timedelta
from distributed import core
from distributed.metrics import monotonic

from dask_marsched.host.contract import misfits_of_function

#: Calls that may be sent twice. A lease has an id, which is granted and released once. Workers call
#: `retire_workers` at the end of their lifetime. Not among them are calls that put into a queue,
#: take from it or count who uses it.
REPEATED = (
    "event_clear",
    "event_is_set",
    "event_set",
    "event_wait",
    "queue_qsize",
    "retire_workers",
    "semaphore_acquire",
    "semaphore_register",
    "semaphore_release",
    "semaphore_value",
    "variable_get",
    "variable_set",
)
_REFRESH, _CLOSE = "semaphore_refresh_leases", "semaphore_close"
#: Calls that return False at a timeout. Others raise a TimeoutError.
_FALSE_AT_TIMEOUT = frozenset({"event_wait", "semaphore_acquire"})

#: Seconds between two looks, and those in which it is noticed that a connection has broken.
_BETWEEN, _NOTICED = 0.1, 2.0
#: Registrations that are remembered; the journal has those that were made before so many others.
_REMEMBERED = 1000


class Connection(Protocol):
    """A worker or a client that comes back to its scheduler."""

    returned: int  #: How often it has come back.

    def is_away(self) -> bool:
        """Whether the scheduler is gone and waited for."""


def misfits() -> list[str]:
    """Return how calls of a scheduler differ from what is expected; empty if they do not."""
    kind = getattr(core, "PooledRPCCall", None)
    return misfits_of_function("PooledRPCCall", kind, "__getattr__", ("key",))


async def came_back(connection: Connection, before: int, until: float = math.inf) -> bool:
    """Wait until a connection is back that had been ``before`` times.

    False if it had not left, or does not return. It may still be away if ``until`` is over.
    """
    noticed = monotonic() + _NOTICED
    while connection.returned == before and not connection.is_away() and monotonic() < noticed:
        await asyncio.sleep(_BETWEEN)
    while connection.is_away() and monotonic() < until:
        await asyncio.sleep(_BETWEEN)
    return connection.returned != before


class PatientCalls:
    """Replaces on one rpc, which is a worker's or a client's, the calls that may be sent twice."""

    def __init__(self, rpc: Any, connection: Connection) -> None:
        self._rpc = rpc
        self._connection = connection
        self._installed: dict[str, Any] = {}
        # By name of a semaphore: how often the connection had returned, and the call.
        self._registered: dict[Hashable, tuple[int, dict[str, Any]]] = {}

    def install(self) -> None:
        """Replace the calls. Idempotent.

        A worker and its client may share an rpc: what the first one has replaced serves both.
        """
        calls: dict[str, Any] = {op: partial(self._call, op) for op in REPEATED}
        calls[_REFRESH], calls[_CLOSE] = self._refresh, self._close
        there = vars(self._rpc)
        new = {op: call for op, call in calls.items() if op not in there}
        there.update(new)
        self._installed.update(new)

    def uninstall(self) -> None:
        """Restore the rpc. Idempotent."""
        calls = vars(self._rpc)
        for op, call in self._installed.items():
            if calls.get(op) is call:
                del calls[op]
        self._installed.clear()

    async def _call(self, op: str, **kwargs: Any) -> Any:
        """Call the scheduler, as often as it dies meanwhile; its timeout goes on."""
        if op == "retire_workers" and not (kwargs.get("workers") or kwargs.get("names")):
            return await self._stock(op)(**kwargs)  # the next scheduler would choose others
        connection, timeout = self._connection, parse_timedelta(kwargs.get("timeout"))
        until = math.inf if timeout is None else monotonic() + timeout
        if connection.is_away():
            await came_back(connection, connection.returned, until)
        while not connection.is_away():
            before = connection.returned
            if timeout is not None:
                kwargs["timeout"] = max(0.0, until - monotonic())
            try:
                return await self._send(op, kwargs)
            except (asyncio.TimeoutError, TimeoutError):
                raise  # the scheduler has sent it; some are OSErrors
            except OSError:
                if not await came_back(connection, before, until) and not connection.is_away():
                    raise
        if op in _FALSE_AT_TIMEOUT:
            return False
        raise asyncio.TimeoutError(f"{op}: the scheduler was not back in time")

    async def _send(self, op: str, kwargs: dict[str, Any]) -> Any:
        name, now = kwargs.get("name"), self._connection.returned
        if op == "semaphore_acquire" and name in self._registered:
            # The journal may lack the last registrations, and the scheduler's answer is an error.
            registered, again = self._registered[name]
            if registered != now:
                await self._send("semaphore_register", again)
        answer = await self._stock(op)(**kwargs)
        if op == "semaphore_register":
            self._registered.pop(name, None)
            self._registered[name] = now, kwargs
            if len(self._registered) > _REMEMBERED:
                del self._registered[next(iter(self._registered))]
        return answer

    async def _close(self, **kwargs: Any) -> Any:
        """Close a semaphore, which is not registered again from then on."""
        self._registered.pop(kwargs.get("name"), None)
        return await self._stock(_CLOSE)(**kwargs)

    async def _refresh(self, **kwargs: Any) -> Any:
        """Refresh leases, unless the scheduler is gone: it gives them their full time again.

        A lease that is released meanwhile would be there again if it were refreshed afterwards.
        """
        if not self._connection.is_away():
            return await self._stock(_REFRESH)(**kwargs)

    def _stock(self, op: str) -> Any:
        return type(self._rpc).__getattr__(self._rpc, op)
