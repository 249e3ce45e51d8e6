"""Collects the events and totals of a simulation for its report."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from dask_marsched.simulation.report.report import SimulationReport
from dask_marsched.simulation.report.timeline import Table, Timeline


class _Rows:
    """Rows under construction, packed with the given `struct` codes: there are millions of them."""

    def __init__(self, **codes: str) -> None:
        self._dtype = np.dtype([(name, np.dtype(code)) for name, code in codes.items()])
        self._pack = struct.Struct("=" + "".join(codes.values())).pack
        self._buffer = bytearray()

    def add(self, *row: float) -> None:
        self._buffer += self._pack(*row)

    def table(self, keys: list[Any]) -> Table:
        return Table(np.frombuffer(self._buffer, self._dtype), keys)


class Recorder:
    """Collects events, in virtual seconds from ``start``; without ``timeline`` only totals."""

    def __init__(self, start: float, timeline: bool) -> None:
        self._start = start
        self._keep = timeline
        self._numbers: dict[Any, int] = {}
        self._ran: set[Any] = set()
        self._recomputed = 0
        self._busy = 0.0
        self._moved = 0
        self._moved_between_hosts = 0
        self._transfers = 0
        self._keys = 0
        self._spilled = 0
        self._paused = 0.0
        self._memory = 0
        self._peak = 0
        self._memory_of: dict[int, int] = {}
        self._peak_of: dict[int, int] = {}
        self._tasks = _Rows(key="i", worker="i", start="d", stop="d")
        self._exchange = _Rows(
            source="i", destination="i", keys="i", bytes="q", start="d", stop="d", between_hosts="?"
        )
        self._changes = _Rows(time="d", worker="i", key="i", bytes="q")
        self._spills = _Rows(time="d", worker="i", bytes="q")
        self._pauses = _Rows(worker="i", start="d", stop="d")
        self._faults: list[tuple[float, str, int]] = []

    def _number(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def joined(self, worker: int) -> None:
        """Note that a worker is there, even if it never holds anything."""
        self._memory_of.setdefault(worker, 0)
        self._peak_of.setdefault(worker, 0)

    def memory_changed(self, now: float, worker: int, key: Any, change: int) -> None:
        """Note that a result came into a worker's memory (> 0 bytes) or left it."""
        self._memory += change
        if self._memory > self._peak:
            self._peak = self._memory
        held = self._memory_of.get(worker, 0) + change
        self._memory_of[worker] = held
        if held > self._peak_of.get(worker, 0):
            self._peak_of[worker] = held
        if self._keep:
            self._changes.add(now - self._start, worker, self._number(key), change)

    def executed(self, key: Any, worker: int, start: float, stop: float) -> None:
        """Note that a task ran from ``start`` to ``stop``."""
        if key in self._ran:
            self._recomputed += 1
        self._ran.add(key)
        self._busy += stop - start
        if self._keep:
            self._tasks.add(self._number(key), worker, start - self._start, stop - self._start)

    def transferred(
        self, ends: tuple[int, int], between_hosts: bool, keys: int, nbytes: int,
        start: float, stop: float,
    ) -> None:  # fmt: skip
        """Note a transfer of ``keys`` results from the first to the second of ``ends``."""
        if not keys:
            return
        self._moved += nbytes
        self._moved_between_hosts += nbytes if between_hosts else 0
        self._transfers += 1
        self._keys += keys
        if self._keep:
            times = (start - self._start, stop - self._start)
            self._exchange.add(*ends, keys, nbytes, *times, between_hosts)

    def spilled(self, now: float, worker: int, nbytes: int) -> None:
        """Note that a worker wrote results to disk, or read them back (< 0)."""
        self._spilled += max(nbytes, 0)
        if self._keep:
            self._spills.add(now - self._start, worker, nbytes)

    def paused(self, worker: int, start: float, stop: float) -> None:
        """Note that a worker was paused from ``start`` to ``stop``."""
        self._paused += stop - start
        if self._keep:
            self._pauses.add(worker, start - self._start, stop - self._start)

    def fault(self, now: float, what: str, worker: int) -> None:
        """Note a fault, also without a timeline."""
        self._faults.append((now - self._start, what, worker))

    def report(self, *, end: float, thread_seconds: float, **facts: Any) -> SimulationReport:
        """Return the report, with ``facts`` that the recorder does not know.

        ``thread_seconds`` are the threads times the time each was there.
        """
        keys = list(self._numbers)
        return SimulationReport(
            **facts,
            makespan=end - self._start,
            bytes_moved=self._moved,
            transfers=self._transfers,
            keys_moved=self._keys,
            bytes_between_hosts=self._moved_between_hosts,
            peak_memory=self._peak,
            peak_memory_per_worker=dict(sorted(self._peak_of.items())),
            bytes_spilled=self._spilled,
            seconds_paused=self._paused,
            tasks_recomputed=self._recomputed,
            utilisation=self._busy / thread_seconds if thread_seconds > 0 else 0.0,
            timeline=Timeline(
                keys=keys,
                tasks=self._tasks.table(keys),
                transfers=self._exchange.table(keys),
                changes=self._changes.table(keys),
                spills=self._spills.table(keys),
                pauses=self._pauses.table(keys),
                faults=self._faults,
            ),
        )
