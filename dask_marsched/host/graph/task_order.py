"""Orders a graph's tasks as Dask does, but the same in every process.

`dask.order.order` iterates over sets of keys, so that its result depends on the hash seed and on
random names. Moved and held bytes of a matrix product varied by a half from run to run. Here Dask
orders integers, which hash to themselves.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import dask.order
from dask._task_spec import DataNode, GraphNode
from dask.typing import Key
from distributed.scheduler import Scheduler

from dask_marsched.core.graph import Edges, OperandGraph
from dask_marsched.core.memoization import memoized
from dask_marsched.fallbacks.counters import Counters
from dask_marsched.host.graph.early_operand_graph import operand_graph
from dask_marsched.host.graph.numbering import as_they_come, canonical
from dask_marsched.host.graph.order_dependencies import sets_freed
from dask_marsched.host.graph.result_sizes import ChunkSizes
from dask_marsched.host.scheduler.garbage_collection import cycles_freed
from dask_marsched.host.scheduler.graph_requests import ArrivingGraphs

logger = logging.getLogger("dask_marsched")

#: The orderer of the graph that is being read, the dict that receives the order, and whether the
#: graph may be planned: not if it has actors.
_Wanted: TypeAlias = "tuple[RepeatableOrder, dict[Key, int], bool] | None"
_wanted: contextvars.ContextVar[_Wanted] = contextvars.ContextVar("order", default=None)

_in_force: weakref.WeakKeyDictionary[Scheduler, RepeatableOrder] = weakref.WeakKeyDictionary()


class _Bare(GraphNode):
    """A task with nothing but the dependencies that Dask's order needs."""

    __slots__ = ()

    def __init__(self, key: Key, dependencies: Iterable[Key]) -> None:
        self.key = key
        self._dependencies = frozenset(dependencies)


def repeatable_order(dsk: Mapping[Key, GraphNode]) -> dict[Key, int]:
    """Return each task's place in Dask's order; raise a ValueError for a cycle.

    Reductions that were joined (`SizedGraph.trees`) are ordered as they were: Dask follows their
    branches. With the sum of a rechunked array as one task it left columns half read, and twice as
    many bytes were held.
    """
    apart: Mapping[Key, GraphNode] = dsk
    if trees := getattr(dsk, "trees", None):
        apart = {**dsk, **{key: _Bare(key, inputs) for key, inputs in trees.items()}}
    keys, inputs = as_they_come(apart)
    first = canonical(keys, inputs)
    numbered = inputs.renumbered(first)
    kinds = [_DATA if isinstance(node, DataNode) else _CALL for node in apart.values()]
    kinds += [_ABSENT] * (len(keys) - len(kinds))
    order = _order(bytes([kinds[i] for i in first]), numbered.starts, numbered.flat)
    own = len(dsk)  # whose keys are the first
    return {keys[i]: place for i, place in zip(first, order, strict=True) if i < own}


#: Kinds of tasks for Dask's order: not in the graph, literal data, others.
_ABSENT, _DATA, _CALL = range(3)


@memoized
def _order(kinds: bytes, starts: list[int], flat: list[int]) -> list[int]:
    """Return Dask's order of tasks that are numbered."""
    # Dask compares keys as strings, so all numbers have the same length.
    base = 10 ** len(str(len(kinds)))
    nodes: dict[Key, GraphNode] = {}
    rows = Edges(starts, flat)
    for place, (kind, own) in enumerate(zip(kinds, rows, strict=True), start=base):
        if kind == _DATA:
            nodes[place] = DataNode(place, None)
        elif kind == _CALL:
            nodes[place] = _Bare(place, [base + j for j in own])
    order = order_and_free(nodes)
    return [order.get(base + k, -1) for k in range(len(kinds))]


def order_and_free(dsk: Mapping[Key, GraphNode]) -> dict[Key, int]:
    """Return Dask's order of a graph, and free what it leaves: two sets a task, in a cycle."""
    with cycles_freed(), sets_freed():
        found: dict[Key, int] = dask.order.order(dsk)
    return found


class RepeatableOrder(ArrivingGraphs):
    """Orders the graphs that arrive at one scheduler; Dask does if that fails."""

    def __init__(
        self,
        scheduler: Scheduler,
        counters: Counters,
        prepare: Callable[[OperandGraph, Mapping[Key, int]], Any],
    ) -> None:
        super().__init__(scheduler, _wanted, _in_force)
        self.counters = counters
        self._prepare = prepare

    def prepared(
        self, dsk: Mapping[Key, GraphNode], order: Mapping[Key, int], sizes: ChunkSizes
    ) -> Any:
        """Return what ``prepare`` makes of a graph, None if that needs the scheduler's state."""
        try:
            graph = operand_graph(dsk, order, sizes)
            return None if graph is None else self._prepare(graph, sizes.exact)
        except Exception as error:
            self.counters.caught("prepare", error)
            return None

    def of_message(self, message: dict[str, Any]) -> _Wanted:
        """Return the request to order the graph in a message; None if it has an order."""
        if message.get("internal_priority"):
            return None
        # Filled when the graph is materialized. If it is still empty then, the scheduler orders
        # the graph itself.
        message["internal_priority"] = {}
        return self, message["internal_priority"], not message.get("actors")


def caught(hook: str, error: Exception) -> None:
    """Count an exception with the scheduler that reads the graph; log it if there is none."""
    wanted = _wanted.get()
    if wanted is not None:
        wanted[0].counters.caught(hook, error)
    else:
        logger.error("%s failed and is left to Dask", hook, exc_info=error)


def order_arriving(dsk: Mapping[Key, GraphNode], sizes: ChunkSizes) -> Any:
    """Order the graph that is being read, in the scheduler's offload thread.

    Returns what is prepared of it (`RepeatableOrder.prepared`), or None.
    """
    wanted = _wanted.get()
    if wanted is None:
        return None
    orders, into, plannable = wanted
    if len(dsk) == 1:  # as from `Client.submit`: Dask would order it in a thread
        ((key, node),) = dsk.items()
        if key not in node.dependencies:
            into[key] = 0
        return None
    try:
        into.update(repeatable_order(dsk))
    except ValueError:
        return None  # Dask reports the cycle
    except Exception as error:
        orders.counters.caught("order", error)
        return None
    return orders.prepared(dsk, into, sizes) if plannable else None


def order_for(scheduler: Scheduler, dsk: Mapping[Key, GraphNode]) -> dict[Key, int]:
    """Return the order that a scheduler would give to a graph; raise a RuntimeError for a cycle."""
    if scheduler in _in_force:
        with contextlib.suppress(ValueError):  # Dask reports the cycle
            return repeatable_order(dsk)
    found: dict[Key, int] = dask.order.order(dict(dsk))
    return found
