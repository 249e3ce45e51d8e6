"""Cancels whole computations: `cancel`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import distributed
from dask.typing import Key

from dask_marsched.core.operand import State
from dask_marsched.host.client.open_clients import require_open
from dask_marsched.host.scheduler import cancellation as host
from dask_marsched.host.scheduler import operand_states as host_operands
from dask_marsched.monitoring.executions import Executions
from dask_marsched.monitoring.operands import graph_keys

_REASON = "dask_marsched.cancel"


def cancel(
    client: distributed.Client,
    graph: Any = None,
    *,
    force: bool = False,
    interrupt: bool = False,
) -> Any:
    """Cancel a computation: waiting operands never run, running ones are interrupted.

    A running task is interrupted if ``marsched.cancelling.interrupt`` is on and the task is known
    to only compute. Results of other running tasks are dropped when they end, as in stock Dask.
    With that option the same keys can be submitted again when this returns.

    Parameters
    ----------
    client : distributed.Client
        A client; dask_marsched must be installed on its scheduler.
    graph
        Futures or persisted collections, or the ``number`` of one of
        ``dask_marsched.operands(client).graphs`` for a graph that another thread computes. By
        default all futures of this client.
    force : bool
        Whether to cancel results that other clients want too.
    interrupt : bool
        Whether to interrupt all tasks that run in a thread, even if they may write somewhere,
        hold a lock or talk to a server.

    Returns
    -------
    dict of str to int
        Number of operands by state, before they were cancelled. For an asynchronous client an
        awaitable of it.

    Raises
    ------
    TypeError
        ``client`` is not a client, or ``graph`` is none of these.
    distributed.client.ClosedClientError
        The client is closed.
    KeyError
        The graph of that number is no longer remembered.

    Examples
    --------
    >>> future = client.compute(x)  # doctest: +SKIP
    >>> dask_marsched.cancel(client, future)  # doctest: +SKIP
    {'unscheduled': 812, 'ready': 4, 'running': 4, 'freed': 30}
    """
    require_open(client, "cancel")
    number, keys = graph_keys(graph) if graph is not None else (None, None)
    return client.sync(_cancel, client, number, keys, force, interrupt)


async def _cancel(
    client: distributed.Client,
    number: int | None,
    keys: list[Key] | None,
    force: bool,
    interrupt: bool,
) -> dict[str, int]:
    reason = host.INTERRUPTED if interrupt else _REASON
    run: Any = client.run_on_scheduler
    if number is None:
        keys = [key for key in (client.futures if keys is None else keys) if key in client.futures]
    counts, cancelled = await run(_on_scheduler, number, keys, client.id, force, reason)
    if keys:
        # Client.cancel is ordered with later submissions of this client, which are not cancelled.
        named: Any = [distributed.Future(key, client) for key in keys]
        await client.cancel(named, force=force, reason=reason)
    for key in cancelled:
        future = client.futures.pop(key, None)
        if future is not None:
            future.cancel(reason=reason)
    return dict(counts)


async def _on_scheduler(
    number: int | None,
    keys: Iterable[Key] | None,
    client: str,
    force: bool,
    reason: str,
    dask_scheduler: Any = None,
) -> tuple[dict[str, int], list[Key]]:
    if number is not None:
        plugin = dask_scheduler.plugins.get("marsched")
        executions: Executions = getattr(plugin, "executions", None) or Executions()
        found = [graph.wanted for graph in executions.graphs if graph.number == number]
        if not found:
            raise KeyError(f"there is no graph {number}")
        keys = list[Any](found[0])
    tasks = await host_operands.operands_of(dask_scheduler, keys or ())
    counts, _ = await host_operands.count_operands(tasks, None, 0)
    cancelled = []
    if number is not None:
        cancelled = host.cancel(
            dask_scheduler, keys or (), client=client, force=force, reason=reason
        )
    return {state.value: counts[state] for state in State if counts[state]}, cancelled
