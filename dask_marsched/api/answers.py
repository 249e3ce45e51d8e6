"""What the endpoints answer, read from the scheduler and the plugin on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask_marsched.api.members import Members
from dask_marsched.api.parameters import RefusedError
from dask_marsched.api.writing import MODULE
from dask_marsched.core.operand import IllegalTransitionError, State
from dask_marsched.executions import Executions, Graph
from dask_marsched.host import cancelling
from dask_marsched.host import operands as host
from dask_marsched.host.http import serves
from dask_marsched.operands import history, row

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
        from dask_marsched import __version__  # it is set when all else is imported

        return __version__

    @property
    def executions(self) -> Executions:
        """The graphs and executions that the plugin remembers."""
        found: Executions = self.plugin.executions
        return found

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
    items = [_graph(source, graph) for graph in known[offset : offset + limit]]
    end = offset + limit
    return {"items": items, "total": len(known), "next": end if end < len(known) else None}


def graph(source: Source, *, graph: int) -> dict[str, Any]:
    """Return one graph."""
    return _graph(source, source.graph(graph))


def _graph(source: Source, graph: Graph) -> dict[str, Any]:
    return {
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


def cancel(source: Source, *, graph: int, force: bool) -> dict[str, Any]:
    """Cancel what is wanted of a graph; return how many of its results that were."""
    found = source.graph(graph)
    cancelled = cancelling.cancel(
        source.scheduler,
        list[Any](found.wanted),
        client=found.client,
        force=force,
        reason="dask_marsched's API",
        told=False,
    )
    return {"graph": graph, "cancelled": len(cancelled)}
