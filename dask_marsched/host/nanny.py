"""The nanny's part: it owns the memory that its worker shares, and counts it fairly.

A worker asks its nanny for a segment when it starts, by the nanny's own `run`: nothing has to be
installed in a nanny before. The memory outlives the worker's process, and ends with the nanny.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any

from distributed import Nanny, Worker
from distributed.diagnostics.plugin import NannyPlugin
from distributed.protocol.pickle import dumps

from dask_marsched.store.residence import charged_memory
from dask_marsched.store.segment import SegmentAddress, create_segment, read_charge

logger = logging.getLogger(__name__)

NAME = "marsched-segment"
_TIMEOUT = 60.0  # seconds


class SegmentOwner(NannyPlugin):
    """Owns a segment for the worker of a nanny.

    Parameters
    ----------
    size : int
        Bytes of addresses.
    """

    name = NAME

    def __init__(self, size: int) -> None:
        self.size = size
        self.segment: SegmentAddress | None = None
        self._stock_monitor: Callable[[], Any] | None = None

    def setup(self, nanny: Nanny) -> None:
        """Create the segment, and correct what the nanny takes for its worker's memory.

        Raises
        ------
        OSError
            If the system has no such memory.
        """
        self.segment = create_segment(self.size)
        monitor = nanny.periodic_callbacks.get("memory_monitor")
        if monitor is not None:
            self._stock_monitor = monitor.callback
            monitor.callback = lambda: self._monitor(nanny)

    def teardown(self, nanny: Nanny) -> None:
        """Let go of the segment: it ends with the last process that has it mapped."""
        monitor = nanny.periodic_callbacks.get("memory_monitor")
        if monitor is not None and self._stock_monitor is not None:
            monitor.callback = self._stock_monitor
        if self.segment is not None:
            os.close(self.segment.fd)
            self.segment = None

    def _monitor(self, nanny: Nanny) -> Any:
        if self._is_within_limit(nanny):
            return None
        assert self._stock_monitor is not None
        return self._stock_monitor()

    def _is_within_limit(self, nanny: Nanny) -> bool:
        """Tell whether a worker that stock takes for too large is not; False if unknown."""
        manager = nanny.memory_manager
        if self.segment is None or not manager.memory_limit or not nanny.pid:
            return False
        try:
            memory = charged_memory(nanny.pid, read_charge(self.segment.fd))
        except OSError:
            return False
        return memory <= manager.memory_limit * manager.memory_terminate_fraction


async def _own_segment(size: int, dask_worker: Nanny) -> tuple[int, int, bytes]:
    # Run in the nanny. The segment of the worker's process before this one is given up: what was
    # in it is lost to the cluster anyway.
    if NAME in dask_worker.plugins:
        await dask_worker.plugin_remove(NAME)
    owner = SegmentOwner(size)
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
    """Have a worker's nanny create a segment for it.

    A nanny that starts answers nobody until its worker has started: do not await this there.

    Parameters
    ----------
    worker
        The worker.
    size : int
        Bytes of addresses.

    Raises
    ------
    OSError
        If the worker has no nanny, or this one has no segment to give: dask_marsched is not
        installed there, say.
    """
    return SegmentAddress(*await _run_in_nanny(worker, _own_segment, size=size))


async def give_up_segment(worker: Worker) -> None:
    """Have a worker's nanny let go of its segment.

    Raises
    ------
    OSError
        If the nanny does not answer.
    """
    await _run_in_nanny(worker, _give_up_segment)


async def _run_in_nanny(worker: Worker, function: Callable[..., Any], **kwargs: Any) -> Any:
    address: Any = worker.nanny
    if not address:
        raise OSError("the worker has no nanny to own shared memory")
    call = worker.rpc(address).run(function=dumps(function), kwargs=dumps(kwargs))
    try:
        answer = await asyncio.wait_for(call, _TIMEOUT)
    except OSError:
        raise
    except Exception as error:  # what the nanny raised, as it is: it has no dask_marsched, say
        raise OSError(f"the nanny cannot do it: {error!r}") from error
    if answer["status"] != "OK":
        raise OSError(f"the nanny cannot do it: {answer.get('exception')!r}")
    return answer["result"]
