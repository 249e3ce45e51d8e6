"""What a simulation reports."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dask.utils import format_bytes

from dask_marsched.simulation.report.peaks import PeakGroup, peak_groups
from dask_marsched.simulation.report.timeline import Timeline

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class SimulationReport:
    """Outcome of a simulated computation.

    Attributes
    ----------
    policy : str
        What decided the placement.
    cluster : dict
        Size and speed of the cluster, and the seed: the attributes of `ClusterSpec`.
    tasks : int
        Tasks in the graph.
    makespan : float
        Seconds from the submission of the graph to the last result known to the client.
    bytes_moved, transfers, keys_moved : int
        Bytes of results sent between workers, in how many transfers, and how many results.
    bytes_between_hosts : int
        The part of ``bytes_moved`` that crossed from one host to another.
    peak_memory : int
        Largest number of bytes of results (replicas included) in memory on the whole cluster at
        one time.
    peak_memory_per_worker : dict of int to int
        The same for each worker, by its number.
    peak_managed : int
        Largest number of bytes that the scheduler believed its workers to hold together, on disk
        too: what the dashboard of a real cluster shows. It is told of a result after a worker has
        it, and forgets it before a worker drops it, so it is mostly less than ``peak_memory``.
    bytes_spilled : int
        Bytes of results that workers wrote to disk for lack of memory.
    seconds_paused : float
        Seconds for which workers were paused for lack of memory, added up.
    tasks_recomputed : int
        Executions beyond the first of every task.
    utilisation : float
        Share of the threads' time that was spent in tasks, 0 to 1.
    cost_sources : dict of str to dict
        Where the ``sizes`` and the ``durations`` of how many tasks come from: ``recorded``,
        ``known`` from the graph, ``learnt`` from recorded tasks of the same name, ``derived``
        from the sizes, or ``guessed``.
    not_simulated : tuple of str
        What the graph contains and the simulation leaves out.
    plugin : dict
        What the plugin itself reports; empty for stock. If tasks were joined (`marsched.fusion`),
        ``fusion`` has ``expressions``: what the tasks in one do, and how many such there are.
    timeline : Timeline
        What happened when; empty if it was not asked for (but for the faults).
    """

    policy: str
    cluster: dict[str, Any]
    tasks: int
    makespan: float
    bytes_moved: int
    transfers: int
    keys_moved: int
    bytes_between_hosts: int
    peak_memory: int
    peak_memory_per_worker: dict[int, int]
    peak_managed: int
    bytes_spilled: int
    seconds_paused: float
    tasks_recomputed: int
    utilisation: float
    cost_sources: dict[str, dict[str, int]]
    not_simulated: tuple[str, ...]
    plugin: dict[str, Any]
    timeline: Timeline

    @property
    def workers(self) -> int:
        """Workers at the start."""
        return int(self.cluster["workers"])

    @property
    def threads(self) -> int:
        """Threads of each worker."""
        return int(self.cluster["threads"])

    @property
    def memory_limit(self) -> int:
        """Bytes of memory of each worker."""
        return int(self.cluster["memory_limit"])

    @property
    def seed(self) -> int:
        """Seed of the noise."""
        return int(self.cluster["seed"])

    def peak_groups(self, n: int = 3, worker: int | None = None) -> list[PeakGroup]:
        """Return the groups of chunks that hold most bytes when most bytes are held.

        Parameters
        ----------
        n
            How many groups.
        worker
            Look at this worker and the moment of its own peak, instead of the whole cluster.

        Raises
        ------
        ValueError
            If the report has no timeline, or there is no such worker.
        """
        if worker is not None and worker not in self.peak_memory_per_worker:
            last = max(self.peak_memory_per_worker)
            raise ValueError(f"worker must be a number from 0 to {last}, not {worker!r}")
        return peak_groups(self.kept_timeline("peak_groups"), n, worker)

    def kept_timeline(self, what: str) -> Timeline:
        """Return the timeline for the method named ``what``.

        Raises
        ------
        ValueError
            If it was not asked for.
        """
        if not self.timeline:
            raise ValueError(f"{what} needs the timeline: simulate(..., timeline=True)")
        return self.timeline

    def to_dict(self, timeline: bool = False) -> dict[str, Any]:
        """Return the report as what JSON knows: texts, numbers, lists and dicts.

        The keys are the names of the attributes, and ``peak_groups`` (empty without a timeline);
        numbers are bytes and seconds; workers' numbers that are keys of a dict are texts.

        Parameters
        ----------
        timeline
            Whether to add ``timeline``: for each table a list for every column, for the column
            ``key`` the keys as texts; and ``faults``.
        """
        shown = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "timeline"
        }
        groups = self.peak_groups() if self.timeline else []
        shown["peak_groups"] = [dataclasses.asdict(group) for group in groups]
        if timeline:
            shown["timeline"] = self.kept_timeline("to_dict(timeline=True)").to_dict()
        plain: dict[str, Any] = json.loads(json.dumps(shown, default=str))
        return plain

    def to_json(self, timeline: bool = False) -> str:
        """Return `to_dict` as JSON."""
        return json.dumps(self.to_dict(timeline), indent=None if timeline else 2)

    def to_frame(self, table: str = "tasks") -> pandas.DataFrame:
        """Return a table of the timeline as a data frame.

        Parameters
        ----------
        table
            ``"tasks"``: key, group, worker, start, stop. ``"transfers"``: source, destination,
            keys, bytes, start, stop, between_hosts. ``"memory"``: time, worker, key, group, bytes
            (the change), worker_bytes and cluster_bytes (what is held after it). Seconds and
            bytes.

        Raises
        ------
        ValueError
            If the table is unknown, or the report has no timeline.
        ModuleNotFoundError
            If pandas is not installed.
        """
        from dask_marsched.simulation.report.frames import frame

        return frame(self, table)

    def plot(self) -> Figure:
        """Draw memory and activity over virtual time; returns the figure and shows nothing.

        Raises
        ------
        ValueError
            If the report has no timeline.
        ModuleNotFoundError
            If matplotlib is not installed.
        """
        from dask_marsched.simulation.report.plot import plot

        return plot(self)

    def to_chrome_trace(self, path: str | Path) -> None:
        """Write the timeline as a trace that https://ui.perfetto.dev and Chrome open.

        A process for each worker; in it lanes of tasks, lanes of results that it receives, and
        its memory. Times are in microseconds.

        Parameters
        ----------
        path
            The file to write, JSON.

        Raises
        ------
        ValueError
            If the report has no timeline.
        OSError
            If the file cannot be written.
        """
        from dask_marsched.simulation.report.trace import write_trace

        write_trace(self, Path(path))

    def __repr__(self) -> str:
        return (
            f"<SimulationReport {self.policy}: {self.tasks} tasks on {self.workers} workers, "
            f"{self.makespan:.3f} s, moved {format_bytes(self.bytes_moved)}, "
            f"peak {format_bytes(self.peak_memory)}, recomputed {self.tasks_recomputed}, "
            f"utilisation {self.utilisation:.2f}>"
        )

    def _repr_html_(self) -> str:
        from dask_marsched.simulation.report.notebook import html

        return html(self)
