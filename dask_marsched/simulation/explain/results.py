"""Defines the parts of an explanation: forecasts, choice of workers, groups in memory."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class PolicyForecast:
    """The forecast for one policy on the given cluster."""

    policy: str  #: ``"stock"``, or the policy of the plugin.
    makespan: float  #: Seconds.
    bytes_moved: int  #: Between workers.
    peak_memory: int  #: Peak of the bytes of results on the cluster.
    peak_per_worker: int  #: The same on one worker.
    peak_with_tasks: int  #: The same with outputs and intermediate results of running tasks.
    bytes_spilled: int
    seconds_paused: float  #: Summed over the workers.
    fits: bool  #: Whether no worker spills or pauses.
    #: Memory of a worker with which it fits, in bytes, rounded up to what machines are sold with.
    smallest_limit: int
    verified: bool  #: Whether that limit was simulated; otherwise it is computed from the peaks.
    #: Why this memory does not suffice. The other numbers then assume unlimited memory.
    error: str | None = None


@dataclasses.dataclass(frozen=True)
class Size:
    """The forecast for the plugin with another number of workers, with enough memory."""

    workers: int
    makespan: float  #: Seconds.
    peak_per_worker: int  #: Peak of the bytes of results on one worker.
    smallest_limit: int  #: Memory of a worker with which it fits, in bytes, from the peaks.
    fits: bool  #: Whether that limit is within the one that was asked for.

    @property
    def worker_seconds(self) -> float:
        """The cost: workers times seconds."""
        return self.workers * self.makespan


@dataclasses.dataclass(frozen=True)
class WorkerChoice:
    """The recommended number of workers, or None if none meets the budget or the deadline."""

    workers: int | None
    reason: str


@dataclasses.dataclass(frozen=True)
class MemoryGroup:
    """Chunks of one operation in memory at the peak; bytes and numbers include replicas."""

    name: str  #: By ``dask.utils.key_split``.
    nbytes: int
    alive: int  #: Number of chunks in memory.
    tasks: int  #: Number of chunks in all.
    share: float  #: Share of all bytes in memory, 0 to 1.
    shape: tuple[int, ...] | None  #: Of the largest chunk, if the graph tells.
    dtype: str | None
