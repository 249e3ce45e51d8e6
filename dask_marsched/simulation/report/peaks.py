"""Finds the groups of chunks that hold most memory at the peak."""

from __future__ import annotations

import dataclasses

import numpy as np

from dask_marsched.simulation.report.timeline import Timeline


@dataclasses.dataclass(frozen=True)
class PeakGroup:
    """Chunks of one group (``dask.utils.key_split``) in memory at a peak, replicas included."""

    group: str
    nbytes: int
    count: int
    share: float  #: Of all bytes held at that moment, 0 to 1.


def peak_groups(timeline: Timeline, n: int, worker: int | None) -> list[PeakGroup]:
    """Return the groups that hold most, largest first; see `SimulationReport.peak_groups`."""
    changes = timeline.changes.rows
    if worker is not None:
        changes = changes[changes["worker"] == worker]
    if not len(changes):
        return []
    changes = changes[: int(np.argmax(np.cumsum(changes["bytes"]))) + 1]
    # The bytes of a key on a worker are the sum of its changes: one slot for each such pair.
    pairs, slot = np.unique(
        changes["worker"].astype(np.int64) * len(timeline.keys) + changes["key"],
        return_inverse=True,
    )
    held = np.zeros(len(pairs), dtype=np.int64)
    np.add.at(held, slot, changes["bytes"])
    names, of_key = timeline.groups
    group = of_key[pairs % len(timeline.keys)]
    nbytes = np.zeros(len(names), dtype=np.int64)
    np.add.at(nbytes, group, held)
    count = np.bincount(group[held > 0], minlength=len(names))
    total = int(nbytes.sum())
    largest = sorted(range(len(names)), key=lambda index: (-int(nbytes[index]), names[index]))
    return [
        PeakGroup(names[index], int(nbytes[index]), int(count[index]), int(nbytes[index]) / total)
        for index in largest[:n]
        if nbytes[index] > 0
    ]
