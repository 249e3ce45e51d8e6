"""Run a Dask graph on a simulated cluster."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Sequence
from typing import Any

import dask
from dask.utils import parse_bytes, parse_timedelta
from distributed.diagnostics.plugin import SchedulerPlugin
from tornado.ioloop import IOLoop

from dask_marsched.host.simulation import collected_errors, expression, materialize
from dask_marsched.host.virtual_time import TwinLoop, use_virtual_clock, virtual_time
from dask_marsched.simulation import isolation
from dask_marsched.simulation.clock import EPOCH, EventQueue
from dask_marsched.simulation.cluster import Cluster, ClusterSpec
from dask_marsched.simulation.costs import CostModel, Costs, derive_costs, record_costs
from dask_marsched.simulation.report import SimulationReport

#: Configuration that makes a scheduler start what the twin has no use for.
_CONFIG: dict[str, Any] = {
    "distributed.scheduler.preload": [],
    "distributed.scheduler.http.routes": [],
}

#: Parameters of a cluster that rarely matter, and their defaults.
_DETAILS: dict[str, Any] = {"task_overhead": "0.5ms", "message_cost": "0.1ms", "noise": 0.05}

Fault = tuple[float, str, int]


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
    costs: Costs | None = None,
    faults: Sequence[Fault] = (),
    seed: int = 0,
    timeline: bool = True,
    validate: bool = False,
    isolated: bool | None = None,
    **details: float | str,
) -> SimulationReport:
    """Simulate the computation of a collection on a cluster, in virtual time.

    The real scheduler with its plugins and the real state machine of every worker run; tasks only
    take time and leave bytes. P2P shuffles, actors, ``secede``, spilling and pausing workers are
    not simulated.

    Parameters
    ----------
    collection
        A Dask collection or a list of them.
    workers, threads, memory_limit, bandwidth, latency, cores, hosts
        The cluster, see :class:`ClusterSpec`. Bytes and seconds may be given as ``"16GiB"``,
        ``"1GB/s"``, ``"1ms"``. By default all workers are on one host if ``cores`` is given, else
        each has its own.
    policy
        ``"stock"``, ``"default"``, the name of an assignment policy, or a scheduler plugin.
    costs
        Sizes and durations. Without, sizes are derived from the graph; if it does not tell them
        all, it is executed once to record them.
    faults
        ``(seconds, "kill", worker)`` and ``(seconds, "join", worker)``; workers are numbered
        from 0.
    seed
        Seed of the noise of the durations.
    timeline
        Whether the report keeps every task, transfer and change of memory.
    validate
        Whether scheduler and workers check their invariants (slow).
    isolated
        Run in a process of its own with a fixed hash seed: reports are then bit-identical
        everywhere. By default so if this process's hash seed is random.
    **details
        ``local_bandwidth``, ``task_overhead``, ``message_cost``, ``noise`` of
        :class:`ClusterSpec`.

    Returns
    -------
    SimulationReport
        What happened.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        For bad input, and for a graph that holds what is not simulated.
    RuntimeError
        If the computation fails, gets stuck, or a plugin's hook raises.
    """
    spec = _spec(
        hosts, workers=workers, threads=threads, memory_limit=memory_limit, bandwidth=bandwidth,
        latency=latency, cores=cores, seed=seed, **details,
    )  # fmt: skip
    items = list(collection) if isinstance(collection, (list, tuple)) else [collection]
    _check(spec, faults)
    job = _Job(items, spec, policy, costs, tuple(faults), timeline, validate)
    return isolation.call(job.run, isolated)


def _spec(hosts: int | None, **given: Any) -> ClusterSpec:
    if hosts is None:
        hosts = given["workers"] if given["cores"] is None else 1
    given = _DETAILS | {"local_bandwidth": given["bandwidth"], "hosts": hosts} | given
    for name in given:
        if name not in ClusterSpec.__dataclass_fields__:
            accepted = ", ".join(sorted(ClusterSpec.__dataclass_fields__))
            raise TypeError(f"unknown argument {name!r}; the cluster's are {accepted}")
    for name in ("bandwidth", "local_bandwidth"):
        value = given[name]
        if isinstance(value, str):
            given[name] = parse_bytes(value.removesuffix("/s"))
        given[name] = float(given[name])
    for name in ("latency", "task_overhead", "message_cost"):
        given[name] = parse_timedelta(given[name])
    given["memory_limit"] = parse_bytes(given["memory_limit"])
    return ClusterSpec(**given)


def _check(spec: ClusterSpec, faults: Sequence[Fault]) -> None:
    for name in ("workers", "threads"):
        if getattr(spec, name) < 1:
            raise ValueError(f"{name} must be 1 or more, not {getattr(spec, name)}")
    for name in ("memory_limit", "bandwidth", "local_bandwidth"):
        if getattr(spec, name) <= 0:
            raise ValueError(f"{name} must be more than 0, not {getattr(spec, name)}")
    for name in ("latency", "task_overhead", "message_cost"):
        if getattr(spec, name) < 0:
            raise ValueError(f"{name} must be 0 seconds or more, not {getattr(spec, name)}")
    if not 1 <= spec.hosts <= spec.workers:
        raise ValueError(f"hosts must be between 1 and {spec.workers}, not {spec.hosts}")
    if spec.cores is not None and spec.cores <= 0:
        raise ValueError(f"cores must be more than 0, or None, not {spec.cores}")
    if not 0 <= spec.noise < 1:
        raise ValueError(f"noise must be at least 0 and less than 1, not {spec.noise}")
    for _, what, _ in faults:
        if what not in ("kill", "join"):
            raise ValueError(f"unknown fault {what!r}; accepted are 'kill' and 'join'")


def _plugins(policy: str | SchedulerPlugin) -> tuple[str, list[SchedulerPlugin]]:
    if isinstance(policy, SchedulerPlugin):
        return type(policy).__name__, [policy]
    if policy == "stock":
        return policy, []
    from dask_marsched.scheduler_plugin import MarsSchedulerPlugin

    if policy == "default":
        return policy, [MarsSchedulerPlugin()]
    return policy, [MarsSchedulerPlugin(assignment=policy)]


@dataclasses.dataclass(frozen=True)
class _Job:
    """All that a simulation needs, so that another process can do it."""

    collections: list[Any]
    spec: ClusterSpec
    policy: str | SchedulerPlugin
    costs: Costs | None
    faults: tuple[Fault, ...]
    timeline: bool
    validate: bool

    def run(self) -> SimulationReport:
        """Simulate in this thread, which must not run an event loop."""
        expr, keys = expression(self.collections)
        dsk, _ = materialize(expr, keys)
        costs = self.costs
        if costs is None:
            costs = derive_costs(self.collections, guess=False)
            if not costs.covers(dsk):
                costs = record_costs(self.collections).without_durations()
        model = CostModel(dsk, costs)
        del dsk
        chosen = _plugins(self.policy)
        queue = EventQueue()
        loop = TwinLoop(queue)
        collecting = gc.isenabled()
        gc.disable()  # millions of live objects, no cycles to speak of
        try:
            with dask.config.set(_CONFIG), virtual_time(queue.time), collected_errors() as errors:
                report = loop.run_until_complete(self._main(loop, queue, model, chosen, expr, keys))
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
        self,
        loop: TwinLoop,
        queue: EventQueue,
        model: CostModel,
        chosen: tuple[str, list[SchedulerPlugin]],
        expr: Any,
        keys: set[Any],
    ) -> SimulationReport:
        use_virtual_clock(IOLoop.current(), queue.time)
        name, plugins = chosen
        cluster = Cluster(self.spec, model, queue, timeline=self.timeline, validate=self.validate)
        try:
            await cluster.scheduler.start_twin(plugins)
            for index in range(self.spec.workers):
                await cluster.join(index)
            actions = {"kill": cluster.kill, "join": cluster.join}
            for seconds, what, index in self.faults:
                queue.at(EPOCH + seconds, actions[what], index, daemon=True)
            tasks = await cluster.run(loop, expr, keys)
            reports = [plugin.report() for plugin in plugins if hasattr(plugin, "report")]
            return cluster.report(name, tasks, reports[0] if reports else {})
        finally:
            await cluster.scheduler.finish()
