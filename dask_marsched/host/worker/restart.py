"""When a nanny starts the process that follows one that died: not where others need the processors.

A new worker imports for a second or more. On a host whose processors are all busy it slows down
those who go on, which have taken over its results, and adds nothing: programs of a second end
before it is there. So it waits for a processor to be idle, for a few seconds at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psutil
from distributed import Nanny
from distributed.core import Status
from distributed.metrics import monotonic

#: Processors that have to be idle.
_ROOM = 0.5
#: Seconds over which that is measured.
_LOOK = 0.1
#: Most seconds that a process waits. Dask's clusters give up a worker that is gone for 15.
_LONGEST = 3.0
_HOOK = "_unregister"


class PatientRestart:
    """Has a nanny wait for an idle processor before it replaces a process that died.

    Parameters
    ----------
    nanny
        The nanny.
    idle
        Returns the seconds that processors of this machine have been idle.
    """

    def __init__(self, nanny: Nanny, idle: Callable[[], float] | None = None) -> None:
        self.nanny: Any = nanny
        self._idle = idle or _idle_seconds
        self._stock: Any = None

    def install(self) -> None:
        """Come between the end of a process and the start of the next one.

        A nanny without that place starts it as it ever does.
        """
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
        until = monotonic() + _LONGEST
        # Not where it closes, or where its user has it restart meanwhile.
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
