"""Explains what a computation will need and what to change, before it runs."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import distributed

from dask_marsched.host.twin.layer_names import layer_names
from dask_marsched.simulation import isolation
from dask_marsched.simulation.amounts import read_seconds
from dask_marsched.simulation.costs.costs import Costs
from dask_marsched.simulation.costs.fused_expressions import fused_expressions, kernel_choices
from dask_marsched.simulation.costs.graph_facts import GraphFacts
from dask_marsched.simulation.costs.persisted import as_persisted
from dask_marsched.simulation.costs.recording import Recording
from dask_marsched.simulation.explain.advice import AdviceContext, advise
from dask_marsched.simulation.explain.cluster_size import ClusterSize, cluster_size
from dask_marsched.simulation.explain.explanation import Explanation
from dask_marsched.simulation.explain.forecast_runs import ForecastRuns
from dask_marsched.simulation.explain.results import MemoryGroup
from dask_marsched.simulation.explain.runs import SimulationRunner
from dask_marsched.simulation.explain.worker_choice import Target
from dask_marsched.simulation.report.timeline import PeakGroup


def explain(
    collection: Any,
    *,
    workers: int | None = None,
    threads: int | None = None,
    memory_limit: int | str | None = None,
    bandwidth: float | str = "1GB/s",
    costs: Costs | Recording | str | Path | None = None,
    client: distributed.Client | None = None,
    max_workers: int | None = None,
    budget: float | str | None = None,
    deadline: float | str | None = None,
    persist: bool = False,
    policy: str = "default",
    time_limit: float | str = "100s",
    isolated: bool | None = None,
    **details: Any,
) -> Explanation:
    """Forecast time and memory of a computation, and advise changes, without computing anything.

    Parameters
    ----------
    collection
        A Dask collection, or a list of them that is computed together.
    workers, threads, memory_limit
        The cluster: number of workers, threads and bytes of memory of each. By default those of
        ``client``; without one 4, 1 and ``"16GiB"``.
    bandwidth
        Of the network, in bytes per second.
    costs
        Recorded sizes and durations, as for `simulate`.
    client
        A client of the cluster to simulate. Nothing runs there.
    max_workers
        Largest number of workers to try; by default four times ``workers``, and at least 16.
    budget
        Workers times seconds, or time of one worker such as ``"3h"``: the fastest number of
        workers within it is recommended.
    deadline
        Seconds, or ``"10 minutes"``: the cheapest number of workers within it is recommended.
        Without ``budget`` and ``deadline`` it is the one at the knee of the curve.
    persist
        Whether the results stay on the workers, as after ``persist``, or are gathered.
    policy
        The plugin's policy to compare with stock Dask.
    time_limit
        Time after which no further simulation is started, except for the first two. Skipped
        simulations are named.
    isolated
        As for `simulate`.
    **details
        Further arguments of `simulate`, such as ``latency`` or ``cores``.

    Returns
    -------
    Explanation
        ``print`` it.

    Raises
    ------
    TypeError, ValueError
        For bad input.
    RuntimeError
        If the simulation fails.
    """
    items = _items(collection)
    size = cluster_size(client, workers, threads, memory_limit, details)
    job = _ExplainJob(
        _title(items), [*as_persisted(items)] if persist else items, size, bandwidth,
        Costs.of(costs).holding(items), policy, _most(max_workers, size),
        Target.parse(budget, deadline), read_seconds("time_limit", time_limit, zero=True),
        parallel=isolated is not False, known=kernel_choices(client),
    )  # fmt: skip
    return isolation.call(job.run, isolated, layer_names(job.collections))


def _items(collection: Any) -> list[Any]:
    items = list(collection) if isinstance(collection, (list, tuple)) else [collection]
    if not items:
        raise ValueError("collection must hold at least one Dask collection; it is empty")
    return items


def _most(max_workers: int | None, size: ClusterSize) -> int:
    if max_workers is None:
        return max(16, 4 * size.workers)
    if max_workers < 1:
        raise ValueError(f"max_workers must be 1 or more, not {max_workers}")
    return max_workers


@dataclasses.dataclass(frozen=True)
class _ExplainJob:
    """The checked arguments of `explain`, so that another process can do the work."""

    title: str
    collections: list[Any]
    size: ClusterSize
    bandwidth: float | str
    costs: Costs
    policy: str
    most: int
    target: Target
    seconds: float
    parallel: bool
    known: dict[str, tuple[tuple[str, ...], float]]

    def run(self) -> Explanation:
        began = time.monotonic()
        items = self.collections
        facts = GraphFacts(items, self.costs)
        size = self.size
        cluster = {name: getattr(size, name) for name in ("workers", "threads", "memory_limit")}
        cluster["bandwidth"] = self.bandwidth
        arguments = {**cluster, **size.details, "costs": self.costs, "policy": self.policy}
        left = self.seconds - (time.monotonic() - began)
        runner = SimulationRunner(items, len(facts.tasks), arguments, left, self.parallel)
        forecast_runs = ForecastRuns(runner, facts.temporaries, size, self.policy, self.most)
        report, need = forecast_runs.smooth_runs[self.policy]
        joined: dict[str, int] = report.plugin.get("fusion", {}).get("expressions", {})
        context = AdviceContext(items, facts, report, need, size.memory_limit, runner)
        return Explanation(
            title=self.title,
            tasks=len(facts.tasks) - len(facts.held),
            cluster=cluster | {"source": size.source},
            stock=forecast_runs.forecasts["stock"],
            marsched=forecast_runs.forecasts[self.policy],
            sizes=facts.sizes,
            choices=forecast_runs.sizes,
            best=self.target.choose(forecast_runs.sizes),
            groups=[_memory_group(facts, group) for group in report.peak_groups(3)],
            joined=dict(sorted(joined.items(), key=lambda item: (-item[1], item[0]))),
            advice=advise(context),
            not_simulated=list(report.not_simulated),
            notes=size.notes,
            skipped=runner.skipped,
            fused=fused_expressions(facts.tasks.values(), self.known),
        )


def _memory_group(facts: GraphFacts, group: PeakGroup) -> MemoryGroup:
    shape, dtype = facts.chunk(group.group)
    return MemoryGroup(
        name=group.group,
        nbytes=group.nbytes,
        alive=group.count,
        tasks=len(facts.groups.get(group.group, [])),
        share=group.share,
        shape=shape,
        dtype=dtype,
    )


def _title(items: list[Any]) -> str:
    names = [_name(item) for item in items[:3]]
    return ", ".join(names) + (f" and {len(items) - 3} more" if items[3:] else "")


def _name(item: Any) -> str:
    kind = type(item).__name__
    shape, dtype = getattr(item, "shape", None), getattr(item, "dtype", None)
    if isinstance(shape, tuple) and shape and all(isinstance(n, int) for n in shape):
        return f"{kind} {' x '.join(map(str, shape))} {dtype}"
    return kind
