"""Pauses a worker only for memory that it can free, and frees what Arrow keeps on an idle one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from distributed.core import Status

from dask_marsched.host.replacements import Replacements
from dask_marsched.host.worker.allocators import release_unused

logger = logging.getLogger("dask_marsched")

#: Readings of memory, one in 0.1 s, without a running task after which a worker is idle.
_IDLE = 10


def install(worker: Any, undo: Replacements, caught: Callable[[str, Exception], None]) -> None:
    """Decide with less reason to pause than Dask's memory monitor has.

    What Arrow keeps unused is released first, and once a worker has been idle for a second: each
    that had run a query of TPC-H kept 400 MB. A worker with tasks to run that runs none and has no
    result in memory is not paused: nothing would ever end the pause. The quota bounds what it
    starts.
    """
    manager, idle = worker.memory_manager, 0

    def pause_or_go_on(worker: Any, memory: int) -> None:
        nonlocal idle
        try:
            idle = 0 if worker.state.executing else idle + 1
            if idle == _IDLE:
                release_unused()
            pause = manager.memory_pause_fraction
            if pause is not False and memory > (most := pause * manager.memory_limit):
                release_unused()
                memory = worker.monitor.get_process_memory()
                if memory > most and _would_wait_for_ever(worker):
                    _go_on(worker, memory / manager.memory_limit)
                    return
        except Exception as error:
            caught("pause_or_go_on", error)
        stock(worker, memory)

    stock = undo.attribute(manager, "_maybe_pause_or_unpause", pause_or_go_on)


def _would_wait_for_ever(worker: Any) -> bool:
    state = worker.state
    waits = state.ready or state.constrained or state.waiting
    return bool(waits) and not state.executing and not worker.data.fast.total_weight


def _go_on(worker: Any, share: float) -> None:
    if worker.status == Status.paused:
        logger.warning(
            "%s resumes at %d%% of its memory limit: it has nothing to run or to spill that would "
            "free memory",
            worker.address,
            100 * share,
        )
        worker.status = Status.running
