"""What `explain` found out, as numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

from dask_marsched.simulation.costs.fused_expressions import FusedExpression
from dask_marsched.simulation.explain.advice import Advice


@dataclasses.dataclass(frozen=True)
class PolicyForecast:
    """What one way of scheduling is expected to do on the cluster.

    Attributes
    ----------
    policy : str
        ``"stock"``, or the policy of the plugin.
    makespan : float
        Seconds.
    bytes_moved : int
        Bytes of results sent between workers.
    peak_memory : int
        Most bytes of results on the cluster at one time.
    peak_per_worker : int
        Most bytes of results on one worker at one time.
    peak_with_tasks : int
        The same with the outputs and the intermediate results of running tasks.
    bytes_spilled : int
        Bytes written to disk for lack of memory.
    seconds_paused : float
        Seconds for which workers were paused for lack of memory, added up.
    fits : bool
        Whether no worker spills or pauses.
    smallest_limit : int
        Smallest memory limit of a worker, in bytes, that can be ordered and with which it fits.
    verified : bool
        Whether that limit was simulated. If not, it is computed from the peaks.
    error : str or None
        Why the computation cannot be done with this memory. The other numbers are then those with
        as much memory as it likes.
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
    """What to expect of the plugin with another number of workers.

    Attributes
    ----------
    workers : int
        The number.
    makespan : float
        Seconds, with enough memory.
    peak_per_worker : int
        Most bytes of results on one worker at one time, with enough memory.
    smallest_limit : int
        Smallest memory limit of a worker, in bytes, with which it fits, computed from the peaks.
    fits : bool
        Whether no worker spills or pauses with the memory limit that was asked for.
    """

    workers: int
    makespan: float
    peak_per_worker: int
    smallest_limit: int
    fits: bool

    @property
    def worker_seconds(self) -> float:
        """What it costs: workers times seconds."""
        return self.workers * self.makespan


@dataclasses.dataclass(frozen=True)
class WorkerChoice:
    """The number of workers that is worth its price.

    Attributes
    ----------
    workers : int or None
        None if no number meets what was asked for.
    reason : str
        Why this one, or why none.
    """

    workers: int | None
    reason: str


@dataclasses.dataclass(frozen=True)
class MemoryGroup:
    """Chunks of one group that are in memory when most is held.

    Attributes
    ----------
    name : str
        Name of the group, which is that of the operation.
    nbytes : int
        Bytes of its chunks on the cluster, replicas included.
    alive, tasks : int
        Chunks that are there, replicas included, of how many in all.
    share : float
        Part of all that is held, 0 to 1.
    shape : tuple of int or None
        Shape of its largest chunk, where the graph tells.
    dtype : str or None
        Type of its elements, where the graph tells.
    """

    name: str
    nbytes: int
    alive: int
    tasks: int
    share: float
    shape: tuple[int, ...] | None
    dtype: str | None


@dataclasses.dataclass(frozen=True)
class Explanation:
    """One page about a computation before it runs; ``print`` shows it.

    Attributes
    ----------
    title : str
        What is computed.
    tasks : int
        Tasks in the graph.
    cluster : dict
        ``workers``, ``threads``, ``memory_limit`` (bytes), ``bandwidth`` and where they are from.
    stock, marsched : PolicyForecast
        Stock Dask and the plugin on this cluster.
    sizes : dict of str to int
        How many sizes of results are ``known`` from the graph, ``recorded``, ``learnt`` from
        recorded ones, and ``guessed``.
    choices : list of Size
        What other numbers of workers do, fewest first.
    best : WorkerChoice
        The number of workers that is worth its price.
    groups : list of MemoryGroup
        What dominates the plugin's peak, largest first.
    joined : dict of str to int
        What tasks that the policy joins do, and how many such tasks there are, most first.
    advice : list of Advice
        What to change.
    not_simulated : list of str
        What the graph contains and the simulation leaves out.
    notes : list of str
        What else a reader must know.
    skipped : list of str
        Simulations left out for lack of time.
    fused : list of FusedExpression
        What workers evaluate in one pass where ``marsched.fusion.kernels`` is on.
    """

    title: str
    tasks: int
    cluster: dict[str, Any]
    stock: PolicyForecast
    marsched: PolicyForecast
    sizes: dict[str, int]
    choices: list[Size]
    best: WorkerChoice
    groups: list[MemoryGroup]
    joined: dict[str, int]
    advice: list[Advice]
    not_simulated: list[str]
    notes: list[str]
    skipped: list[str]
    fused: list[FusedExpression] = dataclasses.field(default_factory=list)

    @property
    def share_guessed(self) -> float:
        """Part of the results whose sizes nobody knows, 0 to 1."""
        return self.sizes.get("guessed", 0) / max(1, self.tasks)

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain types, ready for JSON; bytes and seconds."""
        found = dataclasses.asdict(self) | {"share_guessed": self.share_guessed}
        for group in found["groups"]:
            group["shape"] = None if group["shape"] is None else list(group["shape"])
        for shown, size in zip(found["choices"], self.choices, strict=True):
            shown["worker_seconds"] = size.worker_seconds
        return found

    def __str__(self) -> str:
        from dask_marsched.simulation.explain.page import text

        return text(self)

    def _repr_html_(self) -> str:
        from dask_marsched.simulation.explain.page import html

        return html(self)
