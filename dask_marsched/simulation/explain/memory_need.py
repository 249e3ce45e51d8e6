"""How much memory a simulated computation needs on each worker, and what can be ordered."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import dask
import numpy as np

from dask_marsched.simulation.report.report import SimulationReport

#: Bytes that a worker's process takes before it holds anything, with dask.array imported.
PROCESS_NBYTES = 150 * 2**20


@dataclasses.dataclass(frozen=True)
class MemoryNeed:
    """Bytes that the worker which needs most had to have at one time.

    Attributes
    ----------
    held : int
        Results, replicas included: what Dask calls managed memory.
    total : int
        Results, and the working space of running tasks: their outputs and what fused tasks hold
        in between. The inputs are among the results.
    """

    held: int
    total: int

    @property
    def limit(self) -> int:
        """Memory limit below which a worker would spill or pause, in bytes, unrounded.

        Spilling begins when the results pass ``distributed.worker.memory.target`` or the process
        passes ``spill``; ``pause`` stops it. The thresholds are those of this configuration.
        """
        target, spill, pause = map(_threshold, ("target", "spill", "pause"))
        process = self.total + PROCESS_NBYTES
        return int(max(self.held / target, process / spill, process / pause)) + 1


def _threshold(name: str) -> float:
    """Return a threshold as a fraction of the limit; one that is off counts as the whole."""
    return float(dask.config.get(f"distributed.worker.memory.{name}") or 1.0)


def memory_need(report: SimulationReport, temporaries: Mapping[Any, int]) -> MemoryNeed:
    """Return what the simulated workers needed.

    Parameters
    ----------
    report
        With its timeline.
    temporaries
        Bytes of intermediate results inside tasks, by key.
    """
    timeline = report.timeline
    changes, tasks = timeline.changes.rows, timeline.tasks.rows
    working = np.zeros(len(timeline.keys), dtype=np.int64)
    np.maximum.at(working, changes["key"], changes["bytes"])
    working += [temporaries.get(key, 0) for key in timeline.keys]
    of_task = working[tasks["key"]]
    times = np.concatenate([changes["time"], tasks["start"], tasks["stop"]])
    workers = np.concatenate([changes["worker"], tasks["worker"], tasks["worker"]])
    bytes_ = np.concatenate([changes["bytes"], of_task, -of_task])
    # Working space turns into a result at the very moment at which the task stops.
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
    return next(size for size in _amounts() if size >= nbytes)


def next_orderable(nbytes: int) -> int:
    """Return the next amount that can be ordered."""
    return round_up_to_orderable(nbytes + 1)


def _amounts() -> Iterator[int]:
    size = 128 * 2**20
    while True:
        yield size
        yield size + size // 2
        size *= 2
