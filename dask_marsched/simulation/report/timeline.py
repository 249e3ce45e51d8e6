"""Stores the events of a simulation in tables of numbers, compact and picklable."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from dask.utils import key_split
from numpy.typing import NDArray

#: Rows that are turned into tuples at a time.
_BLOCK = 65_536


class Table(Sequence[tuple[Any, ...]]):
    """Rows of a structured array as tuples; the field ``key`` holds positions in ``keys``."""

    def __init__(self, rows: NDArray[Any], keys: Sequence[Any] = ()) -> None:
        self.rows = rows
        self._keys = keys
        self._names: tuple[str, ...] = rows.dtype.names or ()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Table(self.rows[index], self._keys)
        row = self.rows[index]
        return next(iter(Table(row.reshape(1), self._keys)))

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        place = self._names.index("key") if "key" in self._names else None
        for begin in range(0, len(self.rows), _BLOCK):
            block = self.rows[begin : begin + _BLOCK].tolist()
            if place is None:
                yield from block
            else:
                for row in block:
                    yield (*row[:place], self._keys[row[place]], *row[place + 1 :])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table):
            return NotImplemented
        return self.rows.dtype.names == other.rows.dtype.names and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # how Python says: unhashable

    def __repr__(self) -> str:
        return f"<Table of {len(self)} rows ({', '.join(self._names)})>"


@dataclasses.dataclass(frozen=True)
class PeakGroup:
    """Chunks of one group (``dask.utils.key_split``) in memory at a peak, replicas included."""

    group: str
    nbytes: int
    count: int
    share: float  #: Of all bytes held at that moment, 0 to 1.


@dataclasses.dataclass(frozen=True)
class Timeline:
    """The events of a simulation; times are seconds from the submission of the graph."""

    keys: list[Any]  #: Of all tasks that ran or whose results were held.
    tasks: Table  #: (key, worker, start, stop), in the order of their ends.
    #: (source, destination, keys, bytes, start, stop, between_hosts), in the order of their ends;
    #: ``keys`` is a number.
    transfers: Table
    #: (time, worker, key, bytes): results received or computed (> 0) or dropped (< 0).
    changes: Table
    spills: Table  #: (time, worker, bytes) written to disk (> 0) or read back (< 0).
    pauses: Table  #: (worker, start, stop)
    faults: list[tuple[float, str, int]]  #: (time, what, worker); the scheduler is -1

    def __bool__(self) -> bool:
        return bool(self.keys)

    @functools.cached_property
    def memory(self) -> Table:
        """Bytes of all results on the cluster after each change: (time, bytes)."""
        changes = self.changes.rows
        rows = np.empty(len(changes), dtype=[("time", "f8"), ("bytes", "i8")])
        rows["time"] = changes["time"]
        rows["bytes"] = np.cumsum(changes["bytes"])
        return Table(rows)

    def changes_by_worker(self, workers: Sequence[int]) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield the rows of ``changes`` of each worker; ``workers`` are numbers in order."""
        rows = self.changes.rows
        order = np.argsort(rows["worker"], kind="stable")
        bounds = np.searchsorted(rows["worker"][order], [*workers, workers[-1] + 1])
        for worker, begin, end in zip(workers, bounds[:-1], bounds[1:], strict=True):
            yield worker, rows[order[begin:end]]

    @functools.cached_property
    def groups(self) -> tuple[list[str], NDArray[np.int32]]:
        """Names of the groups of tasks (``dask.utils.key_split``), and the group of each key."""
        numbers: dict[str, int] = {}
        of_key = [numbers.setdefault(key_split(key), len(numbers)) for key in self.keys]
        return list(numbers), np.array(of_key, dtype=np.int32)

    def peak_groups(self, n: int, worker: int | None = None) -> list[PeakGroup]:
        """Return the groups that hold most, largest first; see `SimulationReport.peak_groups`."""
        changes = self.changes.rows
        if worker is not None:
            changes = changes[changes["worker"] == worker]
        if not len(changes):
            return []
        changes = changes[: int(np.argmax(np.cumsum(changes["bytes"]))) + 1]
        # The bytes of a key on a worker are the sum of its changes: one slot for each such pair.
        pairs, slot = np.unique(
            changes["worker"].astype(np.int64) * len(self.keys) + changes["key"],
            return_inverse=True,
        )
        held = np.zeros(len(pairs), dtype=np.int64)
        np.add.at(held, slot, changes["bytes"])
        names, of_key = self.groups
        group = of_key[pairs % len(self.keys)]
        nbytes = np.zeros(len(names), dtype=np.int64)
        np.add.at(nbytes, group, held)
        count = np.bincount(group[held > 0], minlength=len(names))
        total = int(nbytes.sum())
        largest = sorted(range(len(names)), key=lambda index: (-int(nbytes[index]), names[index]))
        return [
            PeakGroup(
                names[index], int(nbytes[index]), int(count[index]), int(nbytes[index]) / total
            )
            for index in largest[:n]
            if nbytes[index] > 0
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the tables as dicts of lists, keys as texts; and the faults."""
        texts = [str(key) for key in self.keys]
        tables: dict[str, Any] = {}
        for name in ("tasks", "transfers", "changes", "spills", "pauses"):
            rows = getattr(self, name).rows
            tables[name] = {column: rows[column].tolist() for column in rows.dtype.names}
            if "key" in tables[name]:
                tables[name]["key"] = [texts[index] for index in tables[name]["key"]]
        return {**tables, "faults": [list(fault) for fault in self.faults]}


Floats = NDArray[np.float64]


def highest(times: Floats, levels: NDArray[np.int64], edges: Floats) -> NDArray[np.int64]:
    """Return the position of the highest level of a step function in each bin.

    The function is ``levels[i]`` from ``times[i]`` on, sorted by time, and 0 before the first;
    position -1 stands for that 0. ``edges`` are the limits of the bins, ascending; the last bin
    includes everything after it.
    """
    begins = np.searchsorted(times, edges[:-1])
    ends = np.append(begins[1:], len(times))
    padded = np.concatenate(([0], levels))  # position i + 1 is level i
    return np.array(
        [
            begin + int(np.argmax(padded[begin : end + 1])) - 1
            for begin, end in zip(begins, ends, strict=True)
        ],
        dtype=np.int64,
    )


def fault_name(what: str, worker: int, prefix: str = "") -> str:
    """Return a fault's name with that of its worker, or the scheduler."""
    return f"{what} {prefix}{worker}" if worker >= 0 else f"{what} scheduler"


def level_at(levels: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the levels at the positions that `highest` returns."""
    return np.concatenate(([0], levels))[positions + 1]


def busy(starts: Floats, stops: Floats, edges: Floats) -> Floats:
    """Return for each bin the mean number of intervals that are open in it."""
    spent = _elapsed(starts, edges) - _elapsed(stops, edges)
    return np.diff(spent) / np.diff(edges)


def _elapsed(since: Floats, times: Floats) -> Floats:
    """Return for each time the sum of the time elapsed since all earlier moments."""
    since = np.sort(since)
    earlier = np.searchsorted(since, times)
    sums = np.concatenate(([0.0], np.cumsum(since)))
    elapsed: Floats = earlier * times - sums[earlier]
    return elapsed
