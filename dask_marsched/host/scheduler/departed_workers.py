"""Keeps a dead worker registered for a while, so that its results are not given up.

Dask gives up its results on removal, which is delayed here until another process can adopt them.
Meanwhile it counts as paused, its tasks go to other workers, and its name is free for the process
that replaces it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from dask.typing import Key
from distributed.comm import CommClosedError
from distributed.core import Status
from distributed.metrics import time
from distributed.scheduler import Scheduler, WorkerState

from dask_marsched.host.contract import misfits_of_attributes, misfits_of_handler
from dask_marsched.host.replacements import Replacements

REGISTER = "register-worker"
_ATTRIBUTES = ("aliases", "allowed_failures", "handle_worker_status_change", "worker_send")


def misfits(scheduler: Any) -> list[str]:
    """Return what is not as expected in a scheduler; empty if all is well."""
    return [
        *misfits_of_attributes("Scheduler", scheduler, _ATTRIBUTES),
        *misfits_of_handler(scheduler, "handlers", REGISTER, "add_worker"),
    ]


class ReassignedTasks(NamedTuple):
    """Time of a worker's death, and the keys of the tasks that other workers got instead."""

    time: float
    keys: list[Key]


class DepartedWorkers:
    """Dead workers whose removal is delayed.

    ``adopted`` maps a worker's address to the adoption that is under way.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        caught: Callable[[str, Exception], None],
        adopted: Mapping[str, asyncio.Future[Any]],
    ) -> None:
        self.scheduler: Any = scheduler
        self._caught = caught
        self._adopted = adopted
        self._waiting: dict[str, tuple[asyncio.Task[None], asyncio.Task[None]]] = {}
        self._reassigned: dict[str, ReassignedTasks] = {}
        self._undo = Replacements()

    def __contains__(self, address: str) -> bool:
        return address in self._waiting

    def install(self) -> None:
        """Wrap the handler that registers workers."""
        self._stock = self._undo.entry(self.scheduler.handlers, REGISTER, self._add_worker)

    def uninstall(self) -> None:
        """Restore the scheduler. Idempotent."""
        self._undo.close()
        self._reassigned.clear()

    def reassigned(self, worker: str) -> ReassignedTasks | None:
        """Return and forget the reassigned tasks of a worker; None if it was removed at once."""
        return self._reassigned.pop(worker, None)

    def hold(
        self,
        ws: WorkerState,
        stimulus_id: str,
        until: Coroutine[Any, Any, None],
        then: Callable[[], Awaitable[Any]],
    ) -> None:
        """Keep a dead worker until ``until`` ends or fails, then remove it by ``then``."""
        ended = asyncio.create_task(until)

        async def remove() -> None:
            try:
                self._free_name(ws)
                self.scheduler.handle_worker_status_change(Status.paused, ws, stimulus_id)
                released = self._reassign(ws, stimulus_id)
                self._reassigned[ws.address] = ReassignedTasks(time(), released)
                await asyncio.wait([ended])
                if not ended.cancelled():
                    ended.result()
            except Exception as error:
                self._caught("delayed_removal", error)
            finally:
                del self._waiting[ws.address]
            await then()

        self._waiting[ws.address] = (ended, asyncio.create_task(remove()))

    def _free_name(self, ws: WorkerState) -> None:
        aliases = self.scheduler.aliases
        if aliases.get(ws.name) == ws.address:
            del aliases[ws.name]
        ws.name = f"{ws.name} (gone from {ws.address})"
        aliases[ws.name] = ws.address

    def _reassign(self, ws: WorkerState, stimulus_id: str) -> list[Key]:
        # As `remove_worker` does. It also decides later on tasks that killed too many workers.
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
        # With a fixed port the next process has the same address, as has a worker that only lost
        # its connection, and Dask allows one worker each.
        there = self.scheduler.coerce_address(address)
        if there not in self._waiting and (adoption := self._adopted.get(there)) is not None:
            await asyncio.wait([adoption])
        waiting = self._waiting.get(there)
        if waiting is not None:
            ended, removal = waiting
            ended.cancel()
            await asyncio.wait([removal])
        is_there = there in self.scheduler.workers
        try:
            return await self._stock(comm, address=address, **kwargs)
        except CommClosedError:
            await self._remove_unanswered(address, kwargs.get("server_id"))
            raise
        except ValueError as error:
            if not is_there:
                raise
            # Dask leaves the process without an answer, waiting.
            await comm.write({"status": "error", "message": str(error), "time": time()})

    async def _remove_unanswered(self, address: str, server_id: str | None) -> None:
        # It died before it was answered; Dask would notice when no heartbeat has come for minutes.
        s = self.scheduler
        ws = s.workers.get(s.coerce_address(address))
        if ws is not None and ws.server_id == server_id:
            await s.remove_worker(ws.address, stimulus_id=f"marsched-not-answered-{time()}")
