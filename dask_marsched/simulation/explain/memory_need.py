"""Computes how much memory a simulated computation needs on each worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import dask
import numpy as np

from dask_marsched.simulation.report.report import SimulationReport

#: Bytes of a worker's process without any results, with dask.array imported.
PROCESS_NBYTES = 150 * 2**20


@dataclasses.dataclass(frozen=True)
class MemoryNeed:
    """Peak bytes of the worker that needs most."""

    held: int  #: Results, replicas included: Dask's managed memory.
    total: int  #: Results, and the outputs and intermediate results of running tasks.

    @property
    def limit(self) -> int:
        """The least memory limit with which no worker spills or pauses, in bytes."""
        target, spill, pause = map(_threshold, ("target", "spill", "pause"))
        process = self.total + PROCESS_NBYTES
        return int(max(self.held / target, process / spill, process / pause)) + 1


def _threshold(name: str) -> float:
    """Return a threshold as a fraction of the limit; 1 if it is switched off."""
    return float(dask.config.get(f"distributed.worker.memory.{name}") or 1.0)


def memory_need(report: SimulationReport, temporaries: Mapping[Any, int]) -> MemoryNeed:
    """Return what the simulated workers needed; ``temporaries`` are bytes inside tasks, by key."""
    timeline = report.timeline
    changes, tasks = timeline.changes.rows, timeline.tasks.rows
    working = np.zeros(len(timeline.keys), dtype=np.int64)
    np.maximum.at(working, changes["key"], changes["bytes"])
    working += [temporaries.get(key, 0) for key in timeline.keys]
    of_task = working[tasks["key"]]
    times = np.concatenate([changes["time"], tasks["start"], tasks["stop"]])
    workers = np.concatenate([changes["worker"], tasks["worker"], tasks["worker"]])
    bytes_ = np.concatenate([changes["bytes"], of_task, -of_task])
    # When a task stops, its working memory is released before its result is counted.
    order = np.lexsort((bytes_, times, workers))
    running = np.cumsum(bytes_[order])
    first = np.flatnonzero(np.diff(workers[order], prepend=-1))
    before = np.repeat(
        np.concatenate([[0], running[first[1:] - 1]]), np.diff(first, append=len(running))
    )
    return MemoryNeed(
        held=max(report.peak_memory_per_worker.values(), default=0),
        total=int((running - before).max(initial=0)),
    )


def round_up_to_orderable(nbytes: float) -> int:
    """Round bytes up to an amount that machines are sold with: 2 or 3 times a power of two."""
    size = 128 * 2**20
    while size < nbytes:
        if size + size // 2 >= nbytes:
            return size + size // 2
        size *= 2
    return size
