"""What a simulation reports."""

from __future__ import annotations

import dataclasses
import json
from typing import Any


@dataclasses.dataclass(frozen=True)
class Timeline:
    """What happened when; times in seconds from the submission of the graph.

    Attributes
    ----------
    tasks : list of (key, worker, start, stop)
        Executions, in the order of their ends.
    transfers : list of (source, destination, keys, bytes, start, stop)
        Transfers between workers, in the order in which they were granted.
    memory : list of (time, bytes)
        Bytes of all results held on the cluster, whenever that changed.
    """

    tasks: list[tuple[Any, int, float, float]]
    transfers: list[tuple[int, int, int, int, float, float]]
    memory: list[tuple[float, int]]


@dataclasses.dataclass(frozen=True)
class SimulationReport:
    """Outcome of a simulated computation.

    Attributes
    ----------
    policy : str
        What decided the placement.
    workers : int
        Workers at the start.
    tasks : int
        Tasks in the graph.
    makespan : float
        Seconds from the submission of the graph to the last result known to the client.
    bytes_moved, transfers, keys_moved : int
        Bytes of results sent between workers, in how many transfers, and how many results.
    bytes_between_hosts : int
        The part of ``bytes_moved`` that crossed from one host to another.
    peak_memory : int
        Largest number of bytes of results (replicas included) on the whole cluster at one time.
    peak_memory_per_worker : dict of int to int
        The same for each worker, by its number.
    tasks_recomputed : int
        Executions beyond the first of every task.
    utilisation : float
        Share of the threads' time that was spent in tasks, 0 to 1.
    plugin : dict
        What the plugin itself reports; empty for stock.
    timeline : Timeline
        What happened when.
    """

    policy: str
    workers: int
    tasks: int
    makespan: float
    bytes_moved: int
    transfers: int
    keys_moved: int
    bytes_between_hosts: int
    peak_memory: int
    peak_memory_per_worker: dict[int, int]
    tasks_recomputed: int
    utilisation: float
    plugin: dict[str, Any]
    timeline: Timeline

    def to_json(self) -> str:
        """Return everything but the timeline as JSON."""
        shown = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "timeline"
        }
        return json.dumps(shown, indent=2, default=str)

    def __repr__(self) -> str:
        return (
            f"<SimulationReport {self.policy}: {self.tasks} tasks on {self.workers} workers, "
            f"{self.makespan:.3f} s, moved {self.bytes_moved / 2**20:.1f} MiB, "
            f"peak {self.peak_memory / 2**20:.1f} MiB, recomputed {self.tasks_recomputed}, "
            f"utilisation {self.utilisation:.2f}>"
        )


class Recorder:
    """Collects the facts during a simulation.

    Parameters
    ----------
    start
        Virtual time at which the graph is submitted, in seconds.
    timeline
        Whether to keep every task, transfer and change of memory.
    """

    def __init__(self, start: float, timeline: bool) -> None:
        self._start = start
        self._keep = timeline
        self._timeline = Timeline([], [], [])
        self._executed: dict[Any, int] = {}
        self._memory = 0
        self._busy = 0.0
        self._moved = 0
        self._moved_between_hosts = 0
        self._transfers = 0
        self._keys = 0
        self._peak = 0

    def memory_changed(self, now: float, change: int) -> None:
        """Note that the bytes held on the cluster changed."""
        self._memory += change
        self._peak = max(self._peak, self._memory)
        if self._keep:
            self._timeline.memory.append((now - self._start, self._memory))

    def executed(self, key: Any, worker: int, start: float, stop: float) -> None:
        """Note that a task ran from ``start`` to ``stop``."""
        self._executed[key] = self._executed.get(key, 0) + 1
        self._busy += stop - start
        if self._keep:
            self._timeline.tasks.append((key, worker, start - self._start, stop - self._start))

    def transferred(
        self, ends: tuple[int, int], between_hosts: bool, keys: int, nbytes: int,
        start: float, stop: float,
    ) -> None:  # fmt: skip
        """Note a transfer between the two workers ``ends``."""
        if not keys:
            return
        self._moved += nbytes
        self._moved_between_hosts += nbytes if between_hosts else 0
        self._transfers += 1
        self._keys += keys
        if self._keep:
            self._timeline.transfers.append(
                (*ends, keys, nbytes, start - self._start, stop - self._start)
            )

    def report(
        self, *, policy: str, workers: int, tasks: int, end: float, thread_seconds: float,
        peaks: dict[int, int], plugin: dict[str, Any],
    ) -> SimulationReport:  # fmt: skip
        """Return the report of a simulation that ended at the virtual time ``end``.

        Parameters
        ----------
        thread_seconds
            Threads times the time that each was there.
        peaks
            Peak memory of each worker, in bytes.
        """
        return SimulationReport(
            policy=policy,
            workers=workers,
            tasks=tasks,
            makespan=end - self._start,
            bytes_moved=self._moved,
            transfers=self._transfers,
            keys_moved=self._keys,
            bytes_between_hosts=self._moved_between_hosts,
            peak_memory=self._peak,
            peak_memory_per_worker=peaks,
            tasks_recomputed=sum(count - 1 for count in self._executed.values()),
            utilisation=self._busy / thread_seconds if thread_seconds > 0 else 0.0,
            plugin=plugin,
            timeline=self._timeline,
        )
