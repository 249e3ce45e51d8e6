"""Keeping a dead worker among the workers for a while, so that its results are not given up.

Dask gives up the results of a worker as it removes it. Until another process can take them over
the removal waits; for the scheduler the worker is one that does not run at present. All that it was
to do goes to others at once, and its name is free for the process that comes after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from dask.typing import Key
from distributed.core import Status
from distributed.metrics import time
from distributed.scheduler import Scheduler, WorkerState

REGISTER = "register-worker"


def misfits(scheduler: Any) -> list[str]:
    """Return what in a scheduler is not as this expects it; empty if all is well."""
    found = [
        f"Scheduler has no attribute {name}"
        for name in ("aliases", "allowed_failures", "handle_worker_status_change", "worker_send")
        if not hasattr(scheduler, name)
    ]
    handler = getattr(scheduler, "handlers", {}).get(REGISTER)
    if getattr(handler, "__name__", None) != "add_worker":
        found.append(f"the handler {REGISTER!r} is not Scheduler.add_worker")
    return found


class GivenAway(NamedTuple):
    """What a worker was to do when it died, and others have to do.

    Attributes
    ----------
    time
        Of its death.
    keys
        Of the operands.
    """

    time: float
    keys: list[Key]


class StandingIn:
    """Dead workers whose removal waits.

    Parameters
    ----------
    scheduler
        The scheduler.
    caught
        Told of exceptions of ours: (where, exception).
    """

    def __init__(self, scheduler: Scheduler, caught: Callable[[str, Exception], None]) -> None:
        self.scheduler: Any = scheduler
        self._caught = caught
        self._waiting: dict[str, tuple[asyncio.Task[None], asyncio.Task[None]]] = {}
        self._given_away: dict[str, GivenAway] = {}
        self._stock: Any = None

    def __contains__(self, address: str) -> bool:
        return address in self._waiting

    def install(self) -> None:
        """Look at each worker before it is registered."""
        self._stock = self.scheduler.handlers[REGISTER]
        self.scheduler.handlers[REGISTER] = self._add_worker

    def uninstall(self) -> None:
        """Restore the scheduler. Idempotent."""
        if self._stock is not None:
            self.scheduler.handlers[REGISTER] = self._stock
            self._stock = None
        self._given_away.clear()

    def given_away(self, worker: str) -> GivenAway | None:
        """Return what a worker that was removed had to do, if its removal waited; asked once."""
        return self._given_away.pop(worker, None)

    def hold(
        self,
        ws: WorkerState,
        stimulus_id: str,
        until: Coroutine[Any, Any, None],
        then: Callable[[], Awaitable[Any]],
    ) -> None:
        """Keep a dead worker until something has happened, then remove it.

        Parameters
        ----------
        ws
            The worker.
        stimulus_id
            Of its removal.
        until
            Awaited before.
        then
            Removes it. Called whatever happens meanwhile.
        """
        ended = asyncio.create_task(until)
        removal = asyncio.create_task(self._wait(ws, stimulus_id, ended, then))
        self._waiting[ws.address] = (ended, removal)

    async def _wait(
        self,
        ws: WorkerState,
        stimulus_id: str,
        ended: asyncio.Task[None],
        then: Callable[[], Awaitable[Any]],
    ) -> None:
        try:
            self._free_its_name(ws)
            self.scheduler.handle_worker_status_change(Status.paused, ws, stimulus_id)
            self._given_away[ws.address] = GivenAway(
                time(), self._give_away_its_work(ws, stimulus_id)
            )
            await asyncio.wait([ended])
            if not ended.cancelled():
                ended.result()
        except Exception as error:
            self._caught("stand in", error)
        finally:
            del self._waiting[ws.address]
        await then()

    def _free_its_name(self, ws: WorkerState) -> None:
        aliases = self.scheduler.aliases
        if aliases.get(ws.name) == ws.address:
            del aliases[ws.name]
        ws.name = f"{ws.name} (gone from {ws.address})"
        aliases[ws.name] = ws.address

    def _give_away_its_work(self, ws: WorkerState, stimulus_id: str) -> list[Key]:
        # As `remove_worker` does it. What has killed too many workers stays until that decides.
        s = self.scheduler
        released = {}
        for ts in list(ws.processing):
            if ts.suspicious < s.allowed_failures:
                ts.suspicious += 1
                ts.prefix.suspicious += 1
                released[ts.key] = "released"
        s.transitions(released, stimulus_id)
        s.stimulus_queue_slots_maybe_opened(stimulus_id=stimulus_id)
        return list(released)

    async def _add_worker(self, comm: Any, *, address: str, **kwargs: Any) -> Any:
        # Where the port is fixed the process that comes after it has its address, and Dask knows
        # no two workers of one.
        waiting = self._waiting.get(self.scheduler.coerce_address(address))
        if waiting is not None:
            ended, removal = waiting
            ended.cancel()
            await asyncio.wait([removal])
        return await self._stock(comm, address=address, **kwargs)
