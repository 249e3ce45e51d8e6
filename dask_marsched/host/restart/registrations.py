"""Removes workers that die before their registration is answered: `Registrations`.

Dask would miss them only when no heartbeat has come for minutes. A scheduler that has just started
answers late, so that this is no rare case.
"""

from __future__ import annotations

from typing import Any

from distributed.comm import CommClosedError
from distributed.metrics import time
from distributed.scheduler import Scheduler

_REGISTER = "register-worker"


class Registrations:
    """Wraps a scheduler's handler of workers that register."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler: Any = scheduler
        self._stock: Any = None

    def install(self) -> None:
        """Wrap the handler."""
        self._stock = self.scheduler.handlers[_REGISTER]
        self.scheduler.handlers[_REGISTER] = self._register

    def uninstall(self) -> None:
        """Restore the handler, unless another part has replaced it. Idempotent."""
        if self.scheduler.handlers.get(_REGISTER) == self._register:
            self.scheduler.handlers[_REGISTER] = self._stock

    async def _register(self, comm: Any, *, address: str, **worker: Any) -> Any:
        s = self.scheduler
        try:
            return await self._stock(comm, address=address, **worker)
        except CommClosedError:
            ws = s.workers.get(s.coerce_address(address))
            if ws is not None and ws.server_id == worker.get("server_id"):
                await s.remove_worker(ws.address, stimulus_id=f"marsched-not-answered-{time()}")
            raise
