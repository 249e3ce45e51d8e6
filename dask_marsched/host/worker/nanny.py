"""Lets a nanny own and count its worker's shared memory, and wait for an idle core to restart it.

Results in that memory survive the worker's process, so that others can adopt them.
"""

from __future__ import annotations

import asyncio
import functools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import psutil
from distributed import Nanny, Worker
from distributed.core import Status
from distributed.diagnostics.plugin import NannyPlugin
from distributed.metrics import monotonic
from distributed.protocol.pickle import dumps
from tornado.ioloop import PeriodicCallback

from dask_marsched.host.replacements import Replacements
from dask_marsched.store import file_ranges
from dask_marsched.store.charge import read_charge, unreclaimable_memory
from dask_marsched.store.segment import SegmentAddress, create_segment

NAME = "marsched-segment"
_TIMEOUT = 60.0  # seconds
#: Seconds between two checks for readers of dead workers' segments. Adoption takes less.
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
        self._undo = Replacements()

    def setup(self, nanny: Nanny) -> None:
        """Create the segment (may raise OSError), correct the memory monitor, delay restarts."""
        self.segment = create_segment(self.size)
        monitor = nanny.periodic_callbacks.get("memory_monitor")
        if monitor is not None:
            stock = monitor.callback
            self._undo.attribute(monitor, "callback", lambda: self._monitor(nanny, stock))
        restart_patiently(nanny, self._undo)
        if self._retired:
            sweep = functools.partial(self._sweep, nanny, nanny.pid)
            sweeping = PeriodicCallback(sweep, _SWEEP * 1000)
            sweeping.start()
            self._undo.callback(sweeping.stop)

    def retire(self) -> list[SegmentAddress]:
        """Hand over all segments to a new owner."""
        segments = [*self._retired, *([self.segment] if self.segment is not None else [])]
        self._retired, self.segment = {}, None
        return segments

    def _sweep(self, nanny: Nanny, pid: int | None) -> None:
        """Close retired segments that had no reader at this check and the one before."""
        # The process that adopts them may take long to start on a busy machine.
        if nanny.pid != pid:
            return
        # One check is not enough: between a reader's death and the adoption there is none.
        for segment, was_read in list(self._retired.items()):
            is_read = file_ranges.is_locked(segment.fd)
            if is_read or was_read:
                self._retired[segment] = is_read
            else:
                del self._retired[segment]
                os.close(segment.fd)

    def teardown(self, nanny: Nanny) -> None:
        """Close the segment, which ends with the last process that has it mapped."""
        self._undo.close()
        for segment in self.retire():
            os.close(segment.fd)

    def _monitor(self, nanny: Nanny, stock: Callable[[], Any]) -> Any:
        return None if self._is_within_limit(nanny) else stock()

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


async def own_segment(size: int, dask_worker: Nanny) -> SegmentAddress:
    """Create a segment of ``size`` bytes, in `run_in_nanny`; OSError if that cannot be."""
    retired = []
    before: Any = dask_worker.plugins.get(NAME)
    if before is not None:
        retired = before.retire()
        await dask_worker.plugin_remove(NAME)
    owner = SegmentOwner(size, retired)
    answer: Any = await dask_worker.plugin_add(plugin=owner, name=NAME)
    if owner.segment is None:
        dask_worker.plugins.pop(NAME, None)
        for segment in retired:
            os.close(segment.fd)
        raise OSError(f"the nanny has no segment: {answer.get('text', answer)}")
    return owner.segment


async def give_up_segment(dask_worker: Nanny) -> None:
    """Release the segment, if there is one, in `run_in_nanny`."""
    if NAME in dask_worker.plugins:
        await dask_worker.plugin_remove(NAME)


async def run_in_nanny(worker: Worker, function: Callable[..., Any], **kwargs: Any) -> Any:
    """Have a worker's nanny call a function with itself as ``dask_worker``; OSError on failure.

    Nothing has to be installed there before. A starting nanny answers only after its worker has
    started: do not await this before.
    """
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
#: Longest delay, seconds.
_LONGEST = 3.0
#: Seconds after a death when Dask's clusters look whether the worker is back. One that is missing
#: just then is given up for ever, even if it was back meanwhile and has died again.
_LOOKED_AFTER = 15.0
_HOOK = "_unregister"
#: When a process of each nanny last died.
_deaths: WeakKeyDictionary[Any, float] = WeakKeyDictionary()


def _idle_seconds() -> float:
    """Return the total idle seconds of this machine's processors."""
    times = psutil.cpu_times()
    return float(times.idle + getattr(times, "iowait", 0.0))


def restart_patiently(
    nanny: Any, undo: Replacements, idle_seconds: Callable[[], float] = _idle_seconds
) -> None:
    """Make a nanny wait for an idle processor before it replaces a dead process.

    The imports of a new worker take a second or more of a processor. On a busy host they slow down
    the workers that have taken over, and short programs end before the new one is ready.
    A process that dies soon after another one of the nanny is replaced at once.
    """
    if not hasattr(nanny, _HOOK):
        return

    async def unregister(*args: Any, **kwargs: Any) -> None:
        await stock(*args, **kwargs)
        before, _deaths[nanny] = _deaths.get(nanny, -math.inf), monotonic()
        if _deaths[nanny] - before < _LOOKED_AFTER:
            return
        until = monotonic() + _LONGEST
        # Ends early if the nanny closes, or its user restarts it.
        while _is_between_processes(nanny) and monotonic() < until:
            idle, began = idle_seconds(), monotonic()
            try:
                await asyncio.sleep(_LOOK)
            except asyncio.CancelledError:
                # distributed would log that as an error
                if nanny.status == Status.closed:
                    return
                raise
            if idle_seconds() - idle >= _LEAST_IDLE * (monotonic() - began):
                break

    # the step between the end of a process and the next start
    stock = undo.attribute(nanny, _HOOK, unregister)


def _is_between_processes(nanny: Any) -> bool:
    return (
        nanny.status == Status.running
        and nanny.process is not None
        and nanny.process.status == Status.stopped
    )
