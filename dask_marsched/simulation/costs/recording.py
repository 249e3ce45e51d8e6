"""Records durations and sizes of all tasks that run on a cluster."""

from __future__ import annotations

import dataclasses
import os
import time
import uuid
from array import array
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask
import distributed
from dask.system import cpu_count
from distributed import Scheduler
from distributed.comm import get_address_host
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.scheduler import TaskState

from dask_marsched.monitoring.probes import load_probe
from dask_marsched.monitoring.recorded_block import RecordedBlock

if TYPE_CHECKING:
    from dask_marsched.simulation.costs.costs import Costs

_PREFIX = "marsched-recorder-"


class TaskRecorder(SchedulerPlugin):
    """Records tasks that end in memory, as in `Recording`, until its client leaves."""

    def __init__(self, name: str, client: str) -> None:
        self.name = name
        self.client = client
        self.executions: dict[str, Any] = {
            "key": [],
            "worker": [],
            "thread": array("Q"),
            "start": array("d"),
            "stop": array("d"),
            "transfer": array("d"),
            "disk": array("d"),
            "nbytes": array("q"),
            "input_nbytes": array("q"),
            "joined": [],
        }
        self._scheduler: Scheduler | None = None

    async def start(self, scheduler: Scheduler) -> None:
        """Keep the scheduler."""
        self._scheduler = scheduler

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Record a task that was just computed."""
        if start != "processing" or finish != "memory":
            return
        spent = {"compute": 0.0, "transfer": 0.0, "disk": 0.0}
        began = ended = None
        for phase in kwargs.get("startstops") or ():
            what = "disk" if phase["action"].startswith("disk") else phase["action"]
            if what in spent:
                spent[what] += phase["stop"] - phase["start"]
            if what == "compute":
                began, ended = phase["start"], phase["stop"]
        if began is None or self._scheduler is None:
            return
        ts = self._scheduler.tasks[key]
        row = {
            "key": key,
            "worker": kwargs.get("worker") or "",
            "thread": kwargs.get("thread") or 0,
            "start": began,
            "stop": ended,
            "transfer": spent["transfer"],
            "disk": spent["disk"],
            "nbytes": kwargs.get("nbytes") or 0,
            "input_nbytes": sum(dts.nbytes for dts in ts.dependencies if dts.nbytes > 0),
            "joined": self._joined(self._scheduler, ts),
        }
        for column, value in row.items():
            self.executions[column].append(value)

    def _joined(self, scheduler: Scheduler, ts: TaskState) -> list[Any]:
        if "marsched" not in scheduler.plugins:
            return []
        # Only now: where there is no plugin, this would load dask.array.
        from dask_marsched.host.graph.fusion import in_force

        fusion = in_force.get(scheduler)
        return fusion.joined(ts) if fusion is not None else []

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Leave with the client, should it go without ending its recording."""
        if client == self.client and self.name in scheduler.plugins:
            scheduler.remove_plugin(self.name)


_Taken = tuple[dict[str, Any], dict[str, int], tuple[str, int]]


def _take(name: str, dask_scheduler: Scheduler) -> _Taken | None:
    """Remove a recorder on the scheduler; return its columns, the cluster, host and process."""
    recorder = dask_scheduler.plugins.get(name)
    if not isinstance(recorder, TaskRecorder):
        return None
    dask_scheduler.remove_plugin(name)
    workers = list(dask_scheduler.workers.values())
    process = (get_address_host(dask_scheduler.address), os.getpid())
    if not workers:
        return recorder.executions, {}, process
    cluster = {
        "workers": len(workers),
        "hosts": len({ws.host for ws in workers}),
        "threads": min(ws.nthreads for ws in workers),
    }
    limits = [ws.memory_limit for ws in workers if ws.memory_limit]
    cluster |= {"memory_limit": min(limits)} if limits else {}
    return recorder.executions, cluster, process


class Recording(RecordedBlock):
    """Durations and sizes of the tasks that ran on a cluster during a ``with`` block.

    Made by `record`. Its attributes are available once the block has ended.

    Attributes
    ----------
    executions : dict of str to sequence
        A row for every execution, in columns: ``key``, ``worker`` (address), ``thread``, ``start``
        and ``stop`` (seconds since the epoch, on the worker's clock), ``transfer`` and ``disk``
        (seconds), ``nbytes`` (of the result), ``input_nbytes`` (of all inputs) and ``joined`` (the
        keys of the tasks that the plugin has fused or bundled into it).
    cluster : dict
        ``workers``, ``threads`` and ``memory_limit`` (bytes) of each, ``cores`` of each host and
        the number of ``hosts``, as arguments of `dask_marsched.simulate`. If workers differ, the
        smallest number counts.
    recorded : str
        Start, by the clock of this machine, in ISO 8601.
    """

    called = "record(client)"

    def __init__(self, client: distributed.Client, path: str | Path | None = None) -> None:
        if not isinstance(client, distributed.Client):
            raise TypeError(f"record takes a distributed.Client, not {client!r}")
        if path is not None:
            path = Path(path)
            if not path.parent.is_dir():
                raise FileNotFoundError(f"path: there is no directory {str(path.parent)!r}")
        self.executions: dict[str, Any] = {}
        self.cluster: dict[str, Any] = {}
        self.recorded = ""
        self._client = client
        self._path = path
        self._name = _PREFIX + uuid.uuid4().hex
        self._cores: dict[str, int] = {}
        self._processor: dict[str, dict[int, tuple[float, float]]] = {}
        self._loads: dict[str, dict[str, Any]] = {}
        self._loops: list[tuple[float, int, int]] = []
        self._elapsed = 0.0

    def __repr__(self) -> str:
        if not self.executions:
            return "<Recording: not ended>"
        return f"<Recording: {len(self)} executions on {self.cluster.get('workers', 0)} workers>"

    def __len__(self) -> int:
        return len(self.executions.get("key", ()))

    @property
    def client(self) -> distributed.Client:
        """The client whose cluster is recorded."""
        return self._client

    async def _begin(self) -> None:
        self.executions, self.cluster = {}, {}
        self.recorded = datetime.now().astimezone().isoformat(timespec="seconds")
        await self._record_by(TaskRecorder(self._name, self._client.id), self._name)
        self._loads = await self._loads_now()
        self._elapsed = -time.monotonic()

    async def _loads_now(self) -> dict[str, dict[str, Any]]:
        run: Any = self._client.run
        loads: dict[str, dict[str, Any]] = await run(load_probe(), on_error="ignore")
        return loads

    async def _end(self, error: BaseException | None) -> None:
        try:
            run: Any = self._client.run_on_scheduler
            found = await run(_take, self._name)
            if found is None:
                raise RuntimeError("the scheduler lost the recording: was it restarted?")
            cores: Any = await self._client.run(cpu_count, on_error="ignore")
            self._elapsed += time.monotonic()
            loads = await self._loads_now()
        except Exception:
            if error is None:  # otherwise the user has to see the error of the block
                raise
            return
        self.executions, self.cluster, scheduler = found
        self._take_loads(loads, scheduler)
        self._cores = {get_address_host(address): int(count) for address, count in cores.items()}
        if self._cores:
            self.cluster["cores"] = min(self._cores.values())
        if self._path is not None and error is None:
            self.save(self._path)

    def _take_loads(self, loads: dict[str, dict[str, Any]], scheduler: tuple[str, int]) -> None:
        self._processor, self._loops = {}, []
        nothing: dict[str, Any] = {"threads": {}, "sent": 0, "nbytes": 0}
        process = {worker: (get_address_host(worker), loads[worker]["pid"]) for worker in loads}
        processes = Counter([scheduler, *process.values()])
        for worker, load in loads.items():
            before = self._loads.get(worker, nothing)
            self._processor[worker] = times = {}
            for thread, (ran, waited) in load["threads"].items():
                ran_before, waited_before = before["threads"].get(thread, (0.0, 0.0))
                times[thread] = (ran - ran_before, waited - waited_before)
            # A worker that joined has spent time on its start, and event loops in one process with
            # others cannot be told apart: both are left out.
            if load["loop"] in before["threads"] and processes[process[worker]] == 1:
                sent, nbytes = (load[name] - before[name] for name in ("sent", "nbytes"))
                self._loops.append((times[load["loop"]][0], sent, nbytes))

    @property
    def overhead(self) -> float:
        """Ratio of workers' time besides tasks to the usual, see `ClusterSpec`; 1 if unknown."""
        from dask_marsched.simulation.costs.recorded import LoopLoad, overhead_of

        return overhead_of([LoopLoad(*loop) for loop in self._loops], len(self), self._elapsed)

    @property
    def makespan(self) -> float:
        """Seconds from the start of the first task to the end of the last one."""
        executions = self._ended()
        return float(max(executions["stop"]) - min(executions["start"]))

    @property
    def costs(self) -> Costs:
        """The costs of the tasks, with their durations on a core of their own.

        Raises
        ------
        RuntimeError
            If the recording has not ended.
        """
        from dask_marsched.simulation.costs.recorded import costs_of

        costs = costs_of(self._ended(), self._cores, self._processor)
        return dataclasses.replace(costs, overhead=self.overhead)

    def save(self, path: str | Path) -> None:
        """Write the costs and all executions to a Parquet file.

        Raises
        ------
        RuntimeError
            If the recording has not ended.
        """
        from dask_marsched.installation import __version__
        from dask_marsched.simulation.costs.costs_file import write

        facts = {
            "recorded": self.recorded,
            "cluster": self.cluster,
            "versions": {
                "dask_marsched": __version__,
                "dask": dask.__version__,
                "distributed": distributed.__version__,
            },
        }
        costs = self.costs
        write(os.fspath(path), vars(costs), facts | {"overhead": costs.overhead}, self._ended())

    def _ended(self) -> dict[str, Any]:
        if not self.executions:
            raise RuntimeError("the recording has not ended: leave its `with` block first")
        return self.executions


def record(client: distributed.Client, path: str | Path | None = None) -> Recording:
    """Record durations and sizes of all tasks that run on a cluster, for `simulate`.

    Any scheduler will do if dask_marsched is installed there. The tasks of all clients are
    recorded. Several recordings may run at once.

    Parameters
    ----------
    client : distributed.Client
        A client of the cluster.
    path : str or Path, optional
        A file to write at the end, in Parquet, unless the block raises. `Recording.save` writes
        it later.

    Returns
    -------
    Recording
        To be used in a ``with`` statement, with an asynchronous client in ``async with``.

    Raises
    ------
    TypeError
        If ``client`` is not a client; where the block begins, if ``with`` and ``async with`` do
        not fit the client.
    FileNotFoundError
        If there is no directory for the file.
    RuntimeError
        Where the block begins, if the scheduler cannot import dask_marsched.

    Examples
    --------
    >>> with dask_marsched.record(client, "costs.parquet"):  # doctest: +SKIP
    ...     x.compute()
    >>> dask_marsched.simulate(x, workers=100, costs="costs.parquet")  # doctest: +SKIP
    """
    return Recording(client, path)
