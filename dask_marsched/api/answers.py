"""What the endpoints answer, read from the scheduler and the plugin on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask_marsched.api.members import Members
from dask_marsched.api.parameters import RefusedError
from dask_marsched.api.writing import MODULE
from dask_marsched.core.operand import IllegalTransitionError, State
from dask_marsched.host.scheduler import cancellation
from dask_marsched.host.scheduler import operand_states as host
from dask_marsched.host.web.http import serves
from dask_marsched.monitoring.executions import Executions, Graph
from dask_marsched.monitoring.operands import history, row

#: Steps of an operand's history that are told, the last ones.
_MOST_STEPS = 200


class Source:
    """A scheduler, and the plugin on it.

    Parameters
    ----------
    scheduler
        A `distributed.Scheduler`.
    plugin
        The `MarsSchedulerPlugin`.
    caught
        Told of exceptions, with the name of what they were caught in.
    """

    def __init__(
        self, scheduler: Any, plugin: Any, caught: Callable[[str, Exception], None]
    ) -> None:
        self.scheduler = scheduler
        self.plugin = plugin
        self.caught = caught
        self.prefix = "/"
        self.members = Members(scheduler)

    @property
    def version(self) -> str:
        """Version of the package."""
        from dask_marsched.installation import __version__

        return __version__

    @property
    def executions(self) -> Executions:
        """The graphs and executions that the plugin remembers."""
        found: Executions = self.plugin.executions
        return found

    @property
    def observer(self) -> Any:
        """What is told of plans and workers.

        Raises
        ------
        RefusedError
            It is switched off.
        """
        if self.plugin.observer is None:
            raise RefusedError(404, "marsched.observer.enabled is off, so that this is not known")
        return self.plugin.observer

    def graph(self, number: int) -> Graph:
        """Return a graph.

        Raises
        ------
        RefusedError
            There is none of that number, or not any more.
        """
        for graph in reversed(self.executions.graphs):
            if graph.number == number:
                return graph
        raise RefusedError(404, f"there is no graph {number}, or not any more", "graph")

    def writable(self) -> bool:
        """Whether distributed's own API is served, so that ours may change things too."""
        return serves(self.scheduler, MODULE)


def status(source: Source) -> dict[str, Any]:
    """Return whether the plugin is at work, and what it has done."""
    return {
        **source.plugin.report(),
        "scheduler": source.scheduler.address,
        "workers": len(source.scheduler.workers),
    }


def graphs(source: Source, *, limit: int, offset: int) -> dict[str, Any]:
    """Return the last graphs, the newest first."""
    known = list(source.executions.graphs)[::-1]
    plans = _plans(source)
    items = [_graph(graph, plans) for graph in known[offset : offset + limit]]
    end = offset + limit
    return {"items": items, "total": len(known), "next": end if end < len(known) else None}


def graph(source: Source, *, graph: int) -> dict[str, Any]:
    """Return one graph."""
    return _graph(source.graph(graph), _plans(source))


def _plans(source: Source) -> dict[int, dict[str, Any]]:
    observer = source.plugin.observer
    return {} if observer is None else {told["number"]: told for told in observer.graphs()}


def _graph(graph: Graph, plans: dict[int, dict[str, Any]]) -> dict[str, Any]:
    told = plans.get(graph.number)
    return {
        "plan": None if told is None else {k: v for k, v in told.items() if k != "number"},
        "number": graph.number,
        "client": graph.client,
        "arrived": graph.arrived,
        "operands": graph.operands,
        "wanted": len(graph.wanted),
    }


async def operands(
    source: Source,
    *,
    graph: int | None,
    state: str | None,
    key: str | None,
    limit: int,
    offset: int,
) -> dict[str, Any]:
    """Return operands, one page of them."""
    scheduler = source.scheduler

    def accepts(ts: Any, own: State) -> bool:
        return (state is None or own.value == state) and (key is None or str(ts.key) == key)

    tasks = scheduler.tasks
    if graph is not None:
        tasks = await source.members.of(source.graph(graph))
    elif key is not None and (known := host.find_operand(scheduler, key)) is not None:
        tasks = [known]
    found, after = await host.page_of_operands(tasks, offset, limit, accepts)
    return {
        "items": [_operand(source, ts, own) for ts, own in found],
        "history": [] if key is None or not found else _history(source, found[0][0].key),
        "total": len(tasks),
        "next": after,
    }


def _history(source: Source, key: Any) -> list[dict[str, Any]]:
    try:
        return history(host.operand_history(source.scheduler, key)[-_MOST_STEPS:])
    except IllegalTransitionError as error:
        source.caught("api", error)
        return []


def _operand(source: Source, ts: Any, own: State) -> dict[str, Any]:
    told = row(ts, own, source.executions)
    told["key"] = str(told["key"])
    told["cause"] = None if told["cause"] is None else str(told["cause"])
    return told


def _of_planned(tell: Callable[..., Any], graph: int | None, **given: Any) -> Any:
    try:
        return tell(graph=graph, **given)
    except KeyError:
        what = "graph" if graph is None else f"graph {graph}"
        message = f"there is no planned {what}, or not any more"
        raise RefusedError(404, message, "graph") from None


def plan(source: Source, *, graph: int, most: int) -> Any:
    """Return the picture of a graph's plan."""
    return _of_planned(source.observer.plan, graph, most=most)


def counts(source: Source, *, graph: int | None) -> Any:
    """Return the numbers of operands by state over time."""
    return _of_planned(source.observer.operand_counts, graph)


def quota(source: Source, *, limit: int) -> dict[str, Any]:
    """Return the quotas of the workers."""
    told = source.observer.memory(limit)
    names = ("limit", "quota", "used", "promised", "queued", "deferrals", "forced", "evictions")
    return {
        "on": told["quota_on"],
        "thresholds": told["thresholds"],
        **_by_worker(told, names, ("limit", "quota", "used", "promised", "queued", "process")),
    }


def store(source: Source, *, limit: int) -> dict[str, Any]:
    """Return where the workers' results are."""
    names = ("limit", "process", "private", "shared", "mapped", "other", "disk")
    return _by_worker(
        source.observer.memory(limit), names, ("process", "private", "shared", "disk")
    )


def _by_worker(
    told: dict[str, Any], names: tuple[str, ...], summed: tuple[str, ...]
) -> dict[str, Any]:
    always = ("worker", "name", "host", "status", "last_seen")
    return {
        "workers": [{name: ws[name] for name in (*always, *names)} for ws in told["workers"]],
        "more_workers": told["more_workers"],
        "total": {name: told["total"][name] for name in ("time", *summed)},
    }


def transfers(source: Source, *, graph: int | None, most: int) -> Any:
    """Return the bytes moved between workers."""
    if graph is not None:
        source.graph(graph)
    return source.observer.transfers(most, graph)


def kernels(source: Source, *, limit: int) -> Any:
    """Return what fused kernels do."""
    return source.observer.kernels(limit)


def faults(source: Source) -> Any:
    """Return what died or failed, and what became of it."""
    return source.observer.faults()


def cancel(source: Source, *, graph: int, force: bool) -> dict[str, Any]:
    """Cancel what is wanted of a graph; return how many of its results that were."""
    found = source.graph(graph)
    cancelled = cancellation.cancel(
        source.scheduler,
        list[Any](found.wanted),
        client=found.client,
        force=force,
        reason="dask_marsched's API",
        told=False,
    )
    return {"graph": graph, "cancelled": len(cancelled)}
