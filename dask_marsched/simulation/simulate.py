"""Runs a Dask graph on a simulated cluster."""

from __future__ import annotations

import dataclasses
import functools
import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask
from dask.utils import format_bytes, key_split
from distributed.diagnostics.plugin import SchedulerPlugin
from tornado.ioloop import IOLoop

from dask_marsched.config import Settings
from dask_marsched.host.graph.task_order import order_for
from dask_marsched.host.scheduler.materialization import fuse_for
from dask_marsched.host.twin.graph import TwinGraph, check_keys, read_graph
from dask_marsched.host.twin.layer_names import layer_names
from dask_marsched.host.twin.scheduler import (
    TwinScheduler,
    collected_errors,
    expression,
    materialize,
)
from dask_marsched.host.twin.virtual_time import TwinLoop, use_virtual_clock, virtual_time
from dask_marsched.policies import registry
from dask_marsched.simulation import isolation
from dask_marsched.simulation.cluster.clock import EventQueue
from dask_marsched.simulation.cluster.cluster import Cluster
from dask_marsched.simulation.cluster.faults import Fault, read_faults
from dask_marsched.simulation.cluster.spec import ClusterSpec, cluster_spec
from dask_marsched.simulation.costs.cost_model import CostModel
from dask_marsched.simulation.costs.costs import Costs
from dask_marsched.simulation.costs.held_results import (
    distribute,
    held_results_limits,
    placeholders,
)
from dask_marsched.simulation.costs.recording import Recording
from dask_marsched.simulation.report.report import SimulationReport

#: Prevents the scheduler from starting what a simulation does not use.
_CONFIG: dict[str, Any] = {
    "distributed.scheduler.preload": [],
    "distributed.scheduler.http.routes": [],
}


def simulate(
    collection: Any,
    *,
    workers: int = 4,
    threads: int = 1,
    memory_limit: int | str = "16GiB",
    bandwidth: float | str = "1GB/s",
    latency: float | str = "1ms",
    cores: float | None = None,
    hosts: int | None = None,
    policy: str | SchedulerPlugin = "default",
    costs: Costs | Recording | str | Path | None = None,
    faults: Sequence[Fault | tuple[Any, ...] | str] = (),
    seed: int = 0,
    timeline: bool = True,
    validate: bool = False,
    isolated: bool | None = None,
    **details: Any,
) -> SimulationReport:
    """Simulate the computation of a collection on a cluster, in virtual time.

    The real scheduler with its plugins and the real state machine of every worker run; tasks only
    take time and leave bytes. The report's ``not_simulated`` names what is left out.

    Parameters
    ----------
    collection
        A Dask collection or a list of them.
    workers, threads, memory_limit, bandwidth, latency, cores, hosts, **details
        The cluster, see :class:`ClusterSpec`. Bytes and seconds may be given as ``"16GiB"``,
        ``"1GB/s"``, ``"1ms"``. By default all workers share a host if ``cores`` is given, else
        each has its own.
    policy
        ``"stock"``, ``"default"``, the name of an assignment policy, or a scheduler plugin. A
        suffix ``+off``, ``+chains`` or ``+subgraphs`` sets the fusion of tasks.
    costs
        Recorded sizes and durations of this program, also on other data: `Costs`, a
        `dask_marsched.Recording`, or a file of either. Missing ones are derived from the graph or
        guessed (`SimulationReport.cost_sources`); nothing is executed.
    faults
        Faults to inject: tuples such as ``(seconds, "kill", worker)``, or the texts of
        ``dask marsched simulate --fault``; see `dask_marsched.simulation.cluster.faults`.
    seed
        Seed of the noise of the durations, and of what stock Dask leaves to the hash seed.
    timeline
        Whether the report keeps every task, transfer and change of memory.
    validate
        Whether scheduler and workers check their invariants (slow).
    isolated
        True runs it in a process whose hash seed is ``seed``: reports are then bit-identical
        everywhere. By default so unless this process has that hash seed (``PYTHONHASHSEED``).

    Returns
    -------
    SimulationReport
        Its time, transfers and memory.

    Raises
    ------
    TypeError, ValueError
        For an invalid argument or fault, something that is no collection, a graph with a cycle or
        missing keys, and a task that no worker has the memory for.
    RuntimeError
        If the computation fails, gets stuck, or a plugin's hook raises.
    """
    known = Costs.of(costs)
    spec = cluster_spec(
        hosts, workers=workers, threads=threads, memory_limit=memory_limit, bandwidth=bandwidth,
        latency=latency, cores=cores, seed=seed, **{"overhead": known.overhead} | details,
    )  # fmt: skip
    items = list(collection) if isinstance(collection, (list, tuple)) else [collection]
    annotations, faults = dask.get_annotations(), read_faults(faults)
    known = known.holding(items)
    job = _SimulationJob(items, spec, policy, known, faults, annotations, timeline, validate)
    return isolation.call(job.run, isolated, layer_names(items), spec.seed)


def _plugin(policy: str | SchedulerPlugin) -> tuple[str, SchedulerPlugin | None]:
    """Return the name of a policy and its plugin, if it has one."""
    if isinstance(policy, SchedulerPlugin):
        return type(policy).__name__, policy
    if policy == "stock":
        return policy, None
    from dask_marsched.scheduler_plugin import MarsSchedulerPlugin

    name, _, fusion = str(policy).partition("+")
    assignment = None if name == "default" else name
    if assignment is not None and assignment not in registry.names("assignment"):
        accepted = ", ".join(map(repr, registry.names("assignment")))
        raise ValueError(
            f"unknown policy {policy!r}; accepted are 'stock', 'default', the assignments "
            f"{accepted}, or a scheduler plugin"
        )
    return policy, MarsSchedulerPlugin(assignment=assignment, fusion=fusion or None)


def _settings(plugin: SchedulerPlugin | None) -> Settings | None:
    """Return the settings of a plugin of this package that is switched on, else None."""
    found = getattr(plugin, "settings", None)
    return found if isinstance(found, Settings) and found.enabled else None


def _batches_releases(plugin: SchedulerPlugin | None) -> bool:
    return _settings(plugin) is not None


@dataclasses.dataclass(frozen=True)
class _SimulationJob:
    """All arguments of a simulation, so that another process can run it."""

    collections: list[Any]
    spec: ClusterSpec
    policy: str | SchedulerPlugin
    costs: Costs
    faults: tuple[Fault, ...]
    annotations: dict[str, Any]
    timeline: bool
    validate: bool

    def run(self) -> SimulationReport:
        """Simulate in this thread, which must not run an event loop."""
        chosen = _plugin(self.policy)
        queue = EventQueue()
        loop = TwinLoop(queue)
        collecting = gc.isenabled()
        gc.disable()  # millions of live objects, no cycles to speak of
        try:
            with dask.config.set(_CONFIG), virtual_time(queue.time), collected_errors() as errors:
                report = loop.run_until_complete(self._main(loop, queue, *chosen))
        finally:
            loop.close()
            if collecting:
                gc.enable()
        if errors:
            info = errors[0].exc_info
            raise RuntimeError(
                f"{len(errors)} exceptions were logged, the first by {errors[0].name}: "
                f"{errors[0].getMessage()}"
            ) from (info[1] if info else None)
        return report

    async def _main(
        self, loop: TwinLoop, queue: EventQueue, name: str, plugin: SchedulerPlugin | None
    ) -> SimulationReport:
        use_virtual_clock(IOLoop.current(), queue.time)
        settings = _settings(plugin)
        cluster = Cluster(
            self.spec,
            queue,
            timeline=self.timeline,
            validate=self.validate,
            batches_releases=_batches_releases(plugin),
            shares_memory=settings is not None and settings.store_shared,
        )
        try:
            await cluster.scheduler.start_twin(plugin)
            for index in range(self.spec.workers):
                await cluster.join(index)
            for fault in self.faults:
                cluster.plan(fault)
            kernels = settings is not None and settings.kernels_enabled
            graph, costs = self._graph(cluster.scheduler, kernels)
            await cluster.run(loop, graph, costs)
            report: dict[str, Any] = getattr(plugin, "report", dict)()
            report.pop("registered", None)  # the process, another one each time
            if report and costs.joined:
                report.setdefault("fusion", {})["expressions"] = costs.joined
            sources = {"sizes": dict(costs.sizes), "durations": dict(costs.durations)}
            return cluster.report(graph, policy=name, plugin=report, cost_sources=sources)
        finally:
            await cluster.scheduler.finish()

    def _graph(self, scheduler: TwinScheduler, kernels: bool) -> tuple[TwinGraph, CostModel]:
        """Turn the collections into tasks as the scheduler with its plugins does."""
        expr, keys = expression(self.collections)
        dsk, annotations = materialize(expr, keys)
        there = placeholders(dsk, keys, self.costs.held)
        check_keys(dsk, keys, there)
        tasks = {**there, **dsk} if there else dsk
        costs = CostModel(expr, tasks, self.costs, plugin=kernels)
        left, groups, bundles = fuse_for(scheduler, dsk, keys, annotations, self.annotations)
        costs.bundle(bundles)
        costs.join(groups)
        graph = read_graph(
            expr, left, keys, annotations, self.annotations, scheduler.places(),
            self.spec.resources, distribute(there, self.costs.held, self.spec.workers),
            functools.partial(order_for, scheduler),
        )  # fmt: skip
        check_memory(graph, costs, self.spec.memory_limit)
        kills = any(fault.what == "kill" for fault in self.faults)
        left_out = held_results_limits(there, self.costs.held, kills)
        return dataclasses.replace(graph, not_simulated=(*graph.not_simulated, *left_out)), costs


def check_memory(graph: TwinGraph, costs: CostModel, memory_limit: int) -> None:
    """Raise ValueError if inputs and result of a task exceed the memory of a worker."""
    found: dict[Any, int] = {}
    for key, task in graph.dsk.items():
        needed = costs(key)[1]
        for dependency in task.dependencies:
            needed += costs(dependency)[1]
        if needed > memory_limit:
            found[key] = needed
    if found:
        # Of equal ones name the first that runs.
        worst = max(found, key=lambda key: (found[key], -graph.order[key]))
        most, count = found[worst], len(found)
        raise ValueError(
            f"{count} tasks cannot run: with inputs and result {key_split(worst)!r} needs "
            f"{format_bytes(most)} ({most} bytes), and memory_limit is "
            f"{format_bytes(memory_limit)}; use smaller chunks, or a memory_limit of at least "
            f"{most} bytes"
        )
