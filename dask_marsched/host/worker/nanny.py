"""Lets a nanny own and count its worker's shared memory, and wait for an idle core to restart it.

Results in that memory survive the worker's process, so that others can adopt them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import psutil
from distributed import Nanny, Worker
from distributed.core import Status
from distributed.diagnostics.plugin import NannyPlugin
from distributed.metrics import monotonic
from distributed.protocol.pickle import dumps
from tornado.ioloop import PeriodicCallback

from dask_marsched.store import file_ranges
from dask_marsched.store.charge import read_charge, unreclaimable_memory
from dask_marsched.store.segment import SegmentAddress, create_segment

logger = logging.getLogger(__name__)

NAME = "marsched-segment"
_TIMEOUT = 60.0  # seconds
#: Seconds between two checks for readers of dead workers' segments. Recovery takes less.
_SWEEP = 5.0


class SegmentOwner(NannyPlugin):
    """Owns the segment, of ``size`` bytes, of a nanny's worker."""

    name = NAME

    def __init__(self, size: int, retired: Sequence[SegmentAddress] = ()) -> None:
        # `retired` are segments of earlier processes of the worker, kept while anybody reads them,
        # so that adopted results can be adopted again.
        self.size = size
        self.segment: SegmentAddress | None = None
        self._retired = dict.fromkeys(retired, True)
        self._sweeping: PeriodicCallback | None = None
        self._stock_monitor: Callable[[], Any] | None = None
        self._restart: PatientRestart | None = None

    def setup(self, nanny: Nanny) -> None:
        """Create the segment (may raise OSError), correct the memory monitor, delay restarts."""
        self.segment = create_segment(self.size)
        monitor = nanny.periodic_callbacks.get("memory_monitor")
        if monitor is not None:
            self._stock_monitor = monitor.callback
            monitor.callback = lambda: self._monitor(nanny)
        self._restart = PatientRestart(nanny)
        self._restart.install()
        if self._retired:
            self._sweeping = PeriodicCallback(self._sweep, _SWEEP * 1000)
            self._sweeping.start()

    def retire(self) -> list[SegmentAddress]:
        """Hand over all segments to a new owner."""
        segments = [*self._retired, *([self.segment] if self.segment is not None else [])]
        self._retired, self.segment = {}, None
        return segments

    def _sweep(self) -> None:
        """Close retired segments that had no reader at this check and the one before."""
        # One check is not enough: between a reader's death and the adoption there is none.
        for segment, was_read in list(self._retired.items()):
            is_read = file_ranges.has_readers(segment.fd)
            if is_read or was_read:
                self._retired[segment] = is_read
            else:
                del self._retired[segment]
                os.close(segment.fd)
        if not self._retired and self._sweeping is not None:
            self._sweeping.stop()

    def teardown(self, nanny: Nanny) -> None:
        """Close the segment, which ends with the last process that has it mapped."""
        monitor = nanny.periodic_callbacks.get("memory_monitor")
        if monitor is not None and self._stock_monitor is not None:
            monitor.callback = self._stock_monitor
        if self._restart is not None:
            self._restart.uninstall()
        if self._sweeping is not None:
            self._sweeping.stop()
        for segment in self.retire():
            os.close(segment.fd)

    def _monitor(self, nanny: Nanny) -> Any:
        if self._is_within_limit(nanny):
            return None
        assert self._stock_monitor is not None
        return self._stock_monitor()

    def _is_within_limit(self, nanny: Nanny) -> bool:
        """Whether the worker is below the limit without what the kernel can take back."""
        manager = nanny.memory_manager
        if self.segment is None or not manager.memory_limit or not nanny.pid:
            return False
        try:
            memory = unreclaimable_memory(nanny.pid, read_charge(self.segment.fd))
        except OSError:
            return False
        return memory <= manager.memory_limit * manager.memory_terminate_fraction


async def _own_segment(size: int, dask_worker: Nanny) -> tuple[int, int, bytes]:
    # Runs in the nanny, by its `run`, so that nothing has to be installed there before.
    retired = []
    before: Any = dask_worker.plugins.get(NAME)
    if before is not None:
        retired = before.retire()
        await dask_worker.plugin_remove(NAME)
    owner = SegmentOwner(size, retired)
    answer: Any = await dask_worker.plugin_add(plugin=owner, name=NAME)
    if owner.segment is None:
        dask_worker.plugins.pop(NAME, None)
        raise OSError(f"the nanny has no segment: {answer.get('text', answer)}")
    pid, fd, identity = owner.segment
    return pid, fd, identity


async def _give_up_segment(dask_worker: Nanny) -> None:
    if NAME in dask_worker.plugins:
        await dask_worker.plugin_remove(NAME)


async def ask_for_segment(worker: Worker, size: int) -> SegmentAddress:
    """Have a worker's nanny create a segment of ``size`` bytes; OSError if it cannot."""
    # A starting nanny answers only after its worker has started: do not await this before.
    return SegmentAddress(*await run_in_nanny(worker, _own_segment, size=size))


async def give_up_segment(worker: Worker) -> None:
    """Have a worker's nanny release its segment; raises OSError if the nanny does not answer."""
    await run_in_nanny(worker, _give_up_segment)


async def run_in_nanny(worker: Worker, function: Callable[..., Any], **kwargs: Any) -> Any:
    """Have a worker's nanny call a function with itself as ``dask_worker``; OSError on failure."""
    address: Any = worker.nanny
    if not address:
        raise OSError("the worker has no nanny to own shared memory")
    call = worker.rpc(address).run(function=dumps(function), kwargs=dumps(kwargs))
    try:
        answer = await asyncio.wait_for(call, _TIMEOUT)
    except OSError:
        raise
    except Exception as error:  # whatever the nanny raised
        raise OSError(f"the nanny cannot do it: {error!r}") from error
    if answer["status"] != "OK":
        raise OSError(f"the nanny cannot do it: {answer.get('exception')!r}")
    return answer["result"]


#: Idle processors needed for a restart.
_LEAST_IDLE = 0.5
#: Seconds over which they are measured.
_LOOK = 0.1
#: Longest delay, seconds; Dask's clusters give up a missing worker after 15.
_LONGEST = 3.0
_HOOK = "_unregister"


class PatientRestart:
    """Makes a nanny wait for an idle processor before it replaces a dead process.

    The imports of a new worker take a second or more of a processor. On a busy host they slow down
    the workers that have taken over, and short programs end before the new one is ready.
    `idle` returns the total idle seconds of this machine's processors.
    """

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
        until = monotonic() + _LONGEST
        # Ends early if the nanny closes, or its user restarts it.
        while self._is_between_processes() and monotonic() < until:
            idle, began = self._idle(), monotonic()
            await asyncio.sleep(_LOOK)
            if self._idle() - idle >= _LEAST_IDLE * (monotonic() - began):
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
