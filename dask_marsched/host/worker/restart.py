"""Delays the restart of a dead worker's process until a processor is idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psutil
from distributed import Nanny
from distributed.core import Status
from distributed.metrics import monotonic

#: Idle processors needed for a restart.
_ROOM = 0.5
#: Seconds over which they are measured.
_LOOK = 0.1
#: Longest delay, seconds; Dask's clusters give up a missing worker after 15.
_LONGEST = 3.0
_HOOK = "_unregister"


class PatientRestart:
    """Makes a nanny wait before it replaces a dead process; `idle` returns total idle seconds."""

    def __init__(self, nanny: Nanny, idle: Callable[[], float] | None = None) -> None:
        self.nanny: Any = nanny
        self._idle = idle or _idle_seconds
        self._stock: Any = None

    def install(self) -> None:
        """Wrap the step between the end of a process and the next start, if there is one."""
        self._stock = getattr(self.nanny, _HOOK, None)
        if self._stock is not None:
            vars(self.nanny)[_HOOK] = self._unregister

    def uninstall(self) -> None:
        """Restore the nanny. Idempotent."""
        if self._stock is not None:
            vars(self.nanny).pop(_HOOK, None)
            self._stock = None

    async def _unregister(self, *args: Any, **kwargs: Any) -> None:
        await self._stock(*args, **kwargs)
        # A new worker's imports would slow down those that took over, for a second or more.
        until = monotonic() + _LONGEST
        # Ends early if the nanny closes, or its user restarts it.
        while self._is_between_processes() and monotonic() < until:
            idle, began = self._idle(), monotonic()
            await asyncio.sleep(_LOOK)
            if self._idle() - idle >= _ROOM * (monotonic() - began):
                break

    def _is_between_processes(self) -> bool:
        process = self.nanny.process
        return (
            self.nanny.status == Status.running
            and process is not None
            and process.status == Status.stopped
        )


def _idle_seconds() -> float:
    times = psutil.cpu_times()
    return float(times.idle + getattr(times, "iowait", 0.0))
