"""Makes the endpoints' answers from the scheduler and the plugin on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dask_marsched.api.parameters import RefusedError
from dask_marsched.api.writing import MODULE
from dask_marsched.core.operand import IllegalTransitionError, State
from dask_marsched.host.scheduler import cancellation
from dask_marsched.host.scheduler import operand_states as host
from dask_marsched.host.scheduler.operand_states import operands_of
from dask_marsched.host.web.http import serves
from dask_marsched.monitoring.executions import Graph
from dask_marsched.monitoring.operands import history, row, with_text_keys

#: Fields of the observer's rows of workers that the answers repeat, by endpoint, and of its totals.
_WORKER = ("worker", "name", "host", "status", "last_seen", "limit")
_QUOTA = ("quota", "used", "promised", "queued", "deferrals", "forced", "evictions")
_STORE = ("process", "private", "shared", "mapped", "other", "disk")
_QUOTA_TOTAL = ("limit", "quota", "used", "promised", "queued", "process")
_STORE_TOTAL = ("process", "private", "shared", "disk")
#: Steps of an operand's history that are shown, the last ones.
_MOST_STEPS = 200
_NO_JOURNAL = "it keeps no journal: see marsched.journal.directory"


class Source:
    """A scheduler, and the `MarsSchedulerPlugin` on it; `caught` counts exceptions of hooks."""

    def __init__(
        self, scheduler: Any, plugin: Any, caught: Callable[[str, Exception], None]
    ) -> None:
        self.scheduler = scheduler
        self.plugin = plugin
        self.caught = caught
        self.prefix = "/"
        self.members = Members(scheduler)

    @property
    def observer(self) -> Any:
        """The plugin's observer of plans and workers; RefusedError if it is switched off."""
        if self.plugin.observer is None:
            raise RefusedError(404, "marsched.observer.enabled is off, so that this is not known")
        return self.plugin.observer

    def graph(self, number: int) -> Graph:
        """Return a graph; RefusedError if none of that number is remembered."""
        graphs: Iterable[Graph] = self.plugin.executions.graphs
        for graph in graphs:
            if graph.number == number:
                return graph
        raise RefusedError(404, f"there is no graph {number}, or not any more", "graph")

    def writable(self) -> bool:
        """Return whether distributed's own API is served, so that ours may change things too."""
        return serves(self.scheduler, MODULE)


def status(source: Source) -> dict[str, Any]:
    """Return whether the plugin is active, and its counters."""
    return {
        **source.plugin.report(),
        "scheduler": source.scheduler.address,
        "workers": len(source.scheduler.workers),
    }


def graphs(source: Source, *, limit: int, offset: int) -> dict[str, Any]:
    """Return the last graphs, the newest first."""
    known = list(source.plugin.executions.graphs)[::-1]
    plans = _plans(source)
    items = [_graph(graph, plans) for graph in known[offset : offset + limit]]
    end = offset + limit
    return {"items": items, "total": len(known), "next": end if end < len(known) else None}


def graph(source: Source, *, graph: int) -> dict[str, Any]:
    """Return one graph."""
    return _graph(source.graph(graph), _plans(source))


def _plans(source: Source) -> dict[int, dict[str, Any]]:
    observer = source.plugin.observer
    return {} if observer is None else {plan.pop("number"): plan for plan in observer.graphs()}


def _graph(graph: Graph, plans: dict[int, dict[str, Any]]) -> dict[str, Any]:
    return {
        "plan": plans.get(graph.number),
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
        "items": [with_text_keys(row(ts, own, source.plugin.executions)) for ts, own in found],
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


def plan(source: Source, *, graph: int, most: int) -> Any:
    """Return the picture of a graph's plan."""
    return _of_planned(source.observer.plan, graph, most=most)


def counts(source: Source, *, graph: int | None) -> Any:
    """Return the numbers of operands by state over time."""
    return _of_planned(source.observer.operand_counts, graph)


def _of_planned(find: Callable[..., Any], graph: int | None, **options: Any) -> Any:
    try:
        return find(graph=graph, **options)
    except KeyError:
        name = "graph" if graph is None else f"graph {graph}"
        message = f"there is no planned {name}, or not any more"
        raise RefusedError(404, message, "graph") from None


def quota(source: Source, *, limit: int) -> dict[str, Any]:
    """Return the quotas of the workers."""
    memory = source.observer.memory(limit)
    found = _by_worker(memory, _QUOTA, _QUOTA_TOTAL)
    return {"on": memory["quota_on"], "thresholds": memory["thresholds"], **found}


def store(source: Source, *, limit: int) -> dict[str, Any]:
    """Return the results that workers hold, by where they are."""
    return _by_worker(source.observer.memory(limit), _STORE, _STORE_TOTAL)


def _by_worker(memory: dict[str, Any], own: Sequence[str], total: Sequence[str]) -> dict[str, Any]:
    names = (*_WORKER, *own)
    return {
        "workers": [{name: worker[name] for name in names} for worker in memory["workers"]],
        "more_workers": memory["more_workers"],
        "total": {name: memory["total"][name] for name in ("time", *total)},
    }


def transfers(source: Source, *, graph: int | None, most: int) -> Any:
    """Return the bytes moved between workers."""
    if graph is not None:
        source.graph(graph)
    return source.observer.transfers(most, graph)


def cancel(source: Source, *, graph: int, force: bool) -> dict[str, Any]:
    """Cancel the wanted results of a graph; return their number."""
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


async def restart(source: Source) -> dict[str, Any]:
    """Have the scheduler write its journal and start its process anew."""
    restarts = source.plugin.restarts
    reason = _NO_JOURNAL if restarts is None else await restarts.restart()
    if reason is not None:
        raise RefusedError(409, reason)
    return {"restarting": True}


#: Seconds for which the operands of a graph are cached.
_KEPT = 10.0


class Members:
    """Finds the operands of a graph; caches those of the last graph for a while.

    The search takes time in proportion to the graph, and yields to the event loop. Concurrent
    requests wait for each other, so that they share one search.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._lock = asyncio.Lock()
        self._of: Graph | None = None
        self._found: list[Any] = []
        self._timer: asyncio.TimerHandle | None = None

    async def of(self, graph: Graph) -> list[Any]:
        """Return the tasks of a graph."""
        async with self._lock:
            if graph is not self._of:
                self.drop()
                keys: Any = graph.wanted
                self._found = await operands_of(self._scheduler, keys)
                self._of = graph
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(_KEPT, self.drop)
            return self._found

    def drop(self) -> None:
        """Empty the cache."""
        if self._timer is not None:
            self._timer.cancel()
        self._of, self._found, self._timer = None, [], None
