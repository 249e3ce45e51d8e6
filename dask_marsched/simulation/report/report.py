"""Holds what a simulation reports, and offers it as text, JSON, tables, figures and traces."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from dask.utils import format_bytes

from dask_marsched.installation import how_to_install
from dask_marsched.simulation.report.notebook import report_html
from dask_marsched.simulation.report.plot import plot_timeline
from dask_marsched.simulation.report.timeline import PeakGroup, Table, Timeline
from dask_marsched.simulation.report.trace import write_trace

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class SimulationReport:
    """Outcome of a simulated computation.

    Attributes
    ----------
    policy : str
        Name of the policy that placed the tasks.
    cluster : dict
        Size and speed of the cluster, and the seed: the attributes of `ClusterSpec`.
    tasks : int
        Tasks in the graph.
    makespan : float
        Seconds from the submission of the graph to the last result known to the client.
    bytes_moved, bytes_between_hosts, transfers, keys_moved : int
        Bytes sent between workers, and between hosts, in so many transfers of so many results.
    peak_memory : int
        Peak of the bytes of results, replicas included, in memory on the whole cluster.
    peak_memory_per_worker : dict of int to int
        The same for each worker, by its number.
    peak_managed : int
        Peak of the managed memory that the scheduler knew of, spilled results included, as
        dashboards show it. It learns of results late and forgets them early, so this is mostly
        less than ``peak_memory``.
    bytes_spilled : int
        Bytes of results spilled to disk.
    seconds_paused : float
        Seconds for which workers were paused, summed over the workers.
    tasks_recomputed : int
        Executions beyond the first of every task.
    utilisation : float
        Share of the threads' time spent in tasks, 0 to 1.
    cost_sources : dict of str to dict
        For ``sizes`` and ``durations``, the number of tasks by source: ``recorded``, ``known``
        from the graph, ``learnt`` from recorded tasks of the same name, ``derived`` from the
        sizes, or ``guessed``.
    not_simulated : tuple of str
        Features of the graph that the simulation ignores.
    plugin : dict
        The plugin's own report; empty for stock. If tasks were fused (`marsched.fusion`),
        ``fusion`` has ``expressions``: the number of fused tasks by the operations in them.
    timeline : Timeline
        All events; without ``timeline=True`` only the faults.
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

    @property
    def setting(self) -> str:
        """The size of the graph and of the cluster in a few words."""
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        workers = "1 worker" if self.workers == 1 else f"{self.workers:,} workers"
        memory = format_bytes(self.memory_limit)
        return f"{self.tasks:,} tasks on {workers} of {threads} and {memory}"

    def quantities(self) -> list[tuple[str, float, str]]:
        """Return name, value and formatted value of the most important numbers."""
        fullest = max(self.peak_memory_per_worker.values(), default=0)
        share = fullest / self.memory_limit
        return [
            ("makespan", self.makespan, f"{self.makespan:.3f} s"),
            ("threads busy", self.utilisation, f"{self.utilisation:.0%}"),
            ("moved between workers", self.bytes_moved, format_bytes(self.bytes_moved)),
            ("moved between hosts", self.bytes_between_hosts,
             format_bytes(self.bytes_between_hosts)),
            ("transfers", self.transfers, f"{self.transfers:,}"),
            ("peak memory, cluster", self.peak_memory, format_bytes(self.peak_memory)),
            ("peak memory, fullest worker", fullest, format_bytes(fullest)),
            ("... of its limit", share, f"{share:.0%}"),
            ("spilled to disk", self.bytes_spilled, format_bytes(self.bytes_spilled)),
            ("workers paused", self.seconds_paused, f"{self.seconds_paused:.3f} s"),
            ("tasks recomputed", self.tasks_recomputed, f"{self.tasks_recomputed:,}"),
        ]  # fmt: skip

    def peak_groups(self, n: int = 3, worker: int | None = None) -> list[PeakGroup]:
        """Return the groups of chunks that hold most bytes at the peak of memory.

        Parameters
        ----------
        n
            Number of groups.
        worker
            Number of a worker, to look at its own peak instead of the cluster's.

        Raises
        ------
        ValueError
            If the report has no timeline, or there is no such worker.
        """
        if worker is not None and worker not in self.peak_memory_per_worker:
            last = max(self.peak_memory_per_worker)
            raise ValueError(f"worker must be a number from 0 to {last}, not {worker!r}")
        return self._kept_timeline("peak_groups").peak_groups(n, worker)

    def _kept_timeline(self, method: str) -> Timeline:
        if not self.timeline:
            raise ValueError(f"{method} needs the timeline: simulate(..., timeline=True)")
        return self.timeline

    def to_dict(self, timeline: bool = False) -> dict[str, Any]:
        """Return the report in JSON's types: the attributes by name, and ``peak_groups``.

        Parameters
        ----------
        timeline
            Whether to add ``timeline`` (columns by table, keys as strings) and ``faults``.
        """
        shown = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "timeline"
        }
        groups = self.peak_groups() if self.timeline else []
        shown["peak_groups"] = [dataclasses.asdict(group) for group in groups]
        if timeline:
            shown["timeline"] = self._kept_timeline("to_dict(timeline=True)").to_dict()
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
            (the change), worker_bytes and cluster_bytes (held after it). Seconds and bytes.

        Raises
        ------
        ValueError
            If the table is unknown, or the report has no timeline.
        ModuleNotFoundError
            If pandas is not installed.
        """
        return data_frame(self._kept_timeline("to_frame"), table)

    def plot(self) -> Figure:
        """Return a figure of memory and activity over virtual time, without showing it.

        Raises
        ------
        ValueError
            If the report has no timeline.
        ModuleNotFoundError
            If matplotlib is not installed.
        """
        title = (
            f"{self.policy}: {self.tasks:,} tasks on {self.workers:,} workers, "
            f"{self.makespan:.3g} s, {format_bytes(self.bytes_moved)} moved, "
            f"{self.utilisation:.0%} busy, {self.tasks_recomputed:,} recomputed"
        )
        workers = list(self.peak_memory_per_worker)
        return plot_timeline(
            self._kept_timeline("plot"), title, self.makespan, workers, self.threads,
            self.memory_limit,
        )  # fmt: skip

    def to_chrome_trace(self, path: str | Path) -> None:
        """Write the timeline as a trace that https://ui.perfetto.dev and Chrome open.

        Each worker is a process with lanes of tasks, lanes of received results, and its memory.
        Times are in microseconds.

        Parameters
        ----------
        path
            The JSON file to write.

        Raises
        ------
        ValueError
            If the report has no timeline.
        OSError
            If the file cannot be written.
        """
        facts = {"policy": self.policy, "cluster": self.cluster, "seed": self.seed}
        workers = list(self.peak_memory_per_worker)
        timeline = self._kept_timeline("to_chrome_trace")
        write_trace(Path(path), timeline, facts, self.makespan, workers)

    def __repr__(self) -> str:
        return (
            f"<SimulationReport {self.policy}: {self.tasks} tasks on {self.workers} workers, "
            f"{self.makespan:.3f} s, moved {format_bytes(self.bytes_moved)}, "
            f"peak {format_bytes(self.peak_memory)}, recomputed {self.tasks_recomputed}, "
            f"utilisation {self.utilisation:.2f}>"
        )

    def _repr_html_(self) -> str:
        facts = [(name, text) for name, _, text in self.quantities()]
        facts += [("not simulated", text) for text in self.not_simulated]
        title = f"{self.setting}, simulated: {self.policy}"
        return report_html(title, facts, self.timeline, self.makespan)


TABLES = ("tasks", "transfers", "memory")


def data_frame(timeline: Timeline, table: str) -> pandas.DataFrame:
    """Return a table as a data frame; see `SimulationReport.to_frame`."""
    if table not in TABLES:
        accepted = ", ".join(map(repr, TABLES))
        raise ValueError(f"table must be one of {accepted}, not {table!r}")
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"to_frame needs pandas, which is not installed: run {how_to_install('simulate')}",
            name=error.name,
        ) from error
    if table != "memory":
        return pandas.DataFrame(_columns(timeline, getattr(timeline, table)))
    memory = pandas.DataFrame(_columns(timeline, timeline.changes))
    memory["worker_bytes"] = memory.groupby("worker")["bytes"].cumsum()
    memory["cluster_bytes"] = memory["bytes"].cumsum()
    return memory


def _columns(timeline: Timeline, table: Table) -> dict[str, Any]:
    """Return the columns of a table; numbers of keys become keys and their groups."""
    names, of_key = timeline.groups
    rows = table.rows
    columns: dict[str, Any] = {}
    for name in rows.dtype.names or ():
        if name == "key":
            keys = np.fromiter(timeline.keys, dtype=object, count=len(timeline.keys))
            columns["key"] = keys[rows["key"]]
            columns["group"] = np.array(names, dtype=object)[of_key[rows["key"]]]
        else:
            columns[name] = rows[name]
    return columns
