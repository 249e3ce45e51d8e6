"""Who can take over the results of a worker that died: its neighbours, or the process after it.

A nanny starts another process in place of one that died. Where no other worker is on the host, that
one is waited for: the nanny still owns what the dead one had in shared memory.
"""

from __future__ import annotations

import asyncio
from typing import Any

from distributed.scheduler import Scheduler, WorkerState

#: Topic of the events that tell the scheduler which workers share their memory.
READY = "marsched-ready"
#: Seconds in which a nanny that lives has answered.
_ANSWERS = 1.0


class Heirs:
    """Knows which workers share memory, and waits for them.

    Parameters
    ----------
    scheduler
        The scheduler, read only.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler: Any = scheduler
        self._ready: set[str] = set()
        self._caught_up = False
        self._awaited: dict[asyncio.Future[None], str] = {}

    def ready(self, worker: str) -> None:
        """Take note that a worker shares its memory from now on."""
        ws = self.scheduler.workers.get(worker)
        if ws is None:
            return
        self._ready.add(worker)
        for future, host in self._awaited.items():
            if host == ws.host and not future.done():
                future.set_result(None)

    def gone(self, worker: str) -> None:
        """Take note that a worker was removed."""
        self._ready.discard(worker)

    def of(self, dead: WorkerState) -> list[WorkerState]:
        """Return the workers that can map what a worker of their host had."""
        s, ready = self.scheduler, self._ready
        if not self._caught_up:
            # Dask tells a plugin of events only when its start has ended; some were ready earlier.
            ready.update(address for _, address in s.get_events(READY))
            self._caught_up = True
        return [
            ws
            for ws in s.running
            if ws is not dead and ws.host == dead.host and ws.address in ready
        ]

    async def wait(self, dead: WorkerState, seconds: float) -> bool:
        """Wait until there is one worker more that can; return False if none is to be expected.

        Parameters
        ----------
        dead
            Whose results are to be taken over.
        seconds
            For how long at most.
        """
        future = asyncio.get_running_loop().create_future()
        self._awaited[future] = dead.host
        try:
            async with asyncio.timeout(seconds):
                if await self._nanny_lives(dead):
                    await future
                    return True
        except TimeoutError:
            pass
        finally:
            del self._awaited[future]
        return False

    async def _nanny_lives(self, dead: WorkerState) -> bool:
        if not dead.nanny:
            return False
        try:
            await asyncio.wait_for(self.scheduler.rpc(dead.nanny).identity(), _ANSWERS)
        except OSError:  # TimeoutError among others
            return False
        return True

    def clear(self) -> None:
        """Wait for nobody any more."""
        self._ready.clear()
        for future in self._awaited:
            if not future.done():
                future.set_result(None)
