"""Finds the workers that can adopt the results of a dead worker, and waits for new ones.

If no other worker runs on the machine, the scheduler waits for the process that the nanny starts
instead of the dead one: that nanny still owns the shared memory.
"""

from __future__ import annotations

import asyncio
from typing import Any

from distributed.scheduler import Scheduler, WorkerState

#: Topic of the events by which workers announce that they share their memory.
READY = "marsched-ready"
#: Topic of the events by which they announce where they keep results.
KEPT = "marsched-kept"
#: Seconds in which a live nanny has answered.
_NANNY_TIMEOUT = 1.0


class Adopters:
    """Knows which workers share memory. It only reads the scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler: Any = scheduler
        self._ready: set[str] = set()
        self._caught_up = False
        self._awaited: dict[asyncio.Future[None], str] = {}

    def ready(self, worker: str) -> None:
        """Record that a worker shares its memory from now on."""
        ws = self.scheduler.workers.get(worker)
        if ws is None:
            return
        self._ready.add(worker)
        for future, host in self._awaited.items():
            if host == ws.host and not future.done():
                future.set_result(None)

    def gone(self, worker: str) -> None:
        """Record that a worker was removed."""
        self._ready.discard(worker)

    def of(self, dead: WorkerState) -> list[WorkerState]:
        """Return the running workers of the same machine that can map a worker's results."""
        s, ready = self.scheduler, self._ready
        if not self._caught_up:
            # Events that arrived while the plugin was starting were not passed to it.
            ready.update(address for _, address in s.get_events(READY))
            self._caught_up = True
        return [
            ws
            for ws in s.running
            if ws is not dead and ws.host == dead.host and ws.address in ready
        ]

    async def wait(self, dead: WorkerState, seconds: float) -> bool:
        """Return whether another adopter came in time; false at once if the nanny is dead too."""
        future = asyncio.get_running_loop().create_future()
        self._awaited[future] = dead.host
        try:
            return await asyncio.wait_for(self._came(dead, future), seconds)
        except asyncio.TimeoutError:
            return False
        finally:
            del self._awaited[future]

    async def _came(self, dead: WorkerState, future: asyncio.Future[None]) -> bool:
        if not await self._nanny_lives(dead):
            return False
        await future
        return True

    async def _nanny_lives(self, dead: WorkerState) -> bool:
        if not dead.nanny:
            return False
        try:
            await asyncio.wait_for(self.scheduler.rpc(dead.nanny).identity(), _NANNY_TIMEOUT)
        except (asyncio.TimeoutError, OSError):
            return False
        return True

    def clear(self) -> None:
        """Forget all workers, and end all waits."""
        self._ready.clear()
        for future in self._awaited:
            if not future.done():
                future.set_result(None)
