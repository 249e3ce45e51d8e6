"""Pauses a worker only for memory that it can free.

Arrow keeps memory that it has freed until it allocates again: 60 MB on a worker after shuffling
partitions of 16 MB, 400 MB after a query of TPC-H. A paused worker never allocates.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

from distributed.core import Status

from dask_marsched.host.replacements import Replacements

logger = logging.getLogger("dask_marsched")

#: A worker is idle if no task ran at so many readings of its memory, of which there are ten a
#: second unless ``distributed.worker.memory.monitor-interval`` says otherwise.
_IDLE = 10


def release_unused() -> None:
    """Return to the system what Arrow keeps, if it is loaded: 20 µs if there is nothing."""
    pool = getattr(sys.modules.get("pyarrow"), "default_memory_pool", None)
    if pool is not None:
        pool().release_unused()


def install(worker: Any, undo: Replacements, caught: Callable[[str, Exception], None]) -> None:
    """Have Dask's memory monitor pause a worker only if that can free memory.

    What Arrow keeps is released first, and also once a worker is idle. A worker that has tasks to
    run, runs none and has no result in memory is not paused, as nothing would end the pause. The
    quota bounds what it starts.
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
