"""Defines the parts of an explanation: forecasts, choice of workers, groups in memory."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class PolicyForecast:
    """The forecast for one policy on the given cluster.

    Attributes
    ----------
    policy : str
        ``"stock"``, or the policy of the plugin.
    makespan : float
        Seconds.
    bytes_moved : int
        Bytes of results sent between workers.
    peak_memory : int
        Peak of the bytes of results on the cluster.
    peak_per_worker : int
        Peak of the bytes of results on one worker.
    peak_with_tasks : int
        The same with outputs and intermediate results of running tasks.
    bytes_spilled : int
        Bytes written to disk for lack of memory.
    seconds_paused : float
        Seconds for which workers were paused, summed over the workers.
    fits : bool
        Whether no worker spills or pauses.
    smallest_limit : int
        Smallest memory limit of a worker, in bytes, with which it fits, rounded up to an amount
        that machines are sold with.
    verified : bool
        Whether that limit was simulated; otherwise it is computed from the peaks.
    error : str or None
        Why the computation cannot run with this memory. The other numbers are then those with
        unlimited memory.
    """

    policy: str
    makespan: float
    bytes_moved: int
    peak_memory: int
    peak_per_worker: int
    peak_with_tasks: int
    bytes_spilled: int
    seconds_paused: float
    fits: bool
    smallest_limit: int
    verified: bool
    error: str | None = None


@dataclasses.dataclass(frozen=True)
class Size:
    """The forecast for the plugin with another number of workers, with enough memory.

    Attributes
    ----------
    workers : int
        The number.
    makespan : float
        Seconds.
    peak_per_worker : int
        Peak of the bytes of results on one worker.
    smallest_limit : int
        Smallest memory limit of a worker, in bytes, with which it fits, computed from the peaks.
    fits : bool
        Whether that limit is within the one that was asked for.
    """

    workers: int
    makespan: float
    peak_per_worker: int
    smallest_limit: int
    fits: bool

    @property
    def worker_seconds(self) -> float:
        """The cost: workers times seconds."""
        return self.workers * self.makespan


@dataclasses.dataclass(frozen=True)
class WorkerChoice:
    """The recommended number of workers.

    Attributes
    ----------
    workers : int or None
        None if no number meets the budget or the deadline.
    reason : str
        Why this one, or why none.
    """

    workers: int | None
    reason: str


@dataclasses.dataclass(frozen=True)
class MemoryGroup:
    """Chunks of one operation that are in memory at the peak.

    Attributes
    ----------
    name : str
        Name of the group (``dask.utils.key_split``).
    nbytes : int
        Bytes of its chunks on the cluster, replicas included.
    alive, tasks : int
        Number of chunks in memory, replicas included, and in all.
    share : float
        Share of all bytes in memory, 0 to 1.
    shape : tuple of int or None
        Shape of its largest chunk, if the graph tells.
    dtype : str or None
        Type of its elements, if the graph tells.
    """

    name: str
    nbytes: int
    alive: int
    tasks: int
    share: float
    shape: tuple[int, ...] | None
    dtype: str | None
