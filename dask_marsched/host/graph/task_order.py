"""Dask's order of a graph's tasks, the same in every process.

`dask.order.order` iterates over sets of keys: what it returns follows from the hash seed of the
scheduler's process, and where Dask names tasks by random numbers it is another one for the next
computation, too. Plans are made along it, so that what moves, and what is held, would change from
run to run: for the product of two matrices by a half. Here it is asked for the order of numbers,
which hash to themselves.
"""

from __future__ import annotations

import contextlib
import contextvars
import weakref
from collections.abc import Mapping
from typing import Any, TypeAlias

import dask.order
from dask._task_spec import DataNode, GraphNode
from dask.typing import Key
from distributed.scheduler import Scheduler

from dask_marsched.fallbacks.counters import Counters
from dask_marsched.host.graph.numbering import as_they_come, canonical
from dask_marsched.host.scheduler.update_graph_hooks import ArrivingGraphs

#: Who orders the graph that is being read, and what its order goes to.
_Wanted: TypeAlias = "tuple[RepeatableOrder, dict[Key, int]] | None"
_wanted: contextvars.ContextVar[_Wanted] = contextvars.ContextVar("order", default=None)

#: By scheduler, what orders its graphs.
_in_force: weakref.WeakKeyDictionary[Scheduler, RepeatableOrder] = weakref.WeakKeyDictionary()


class _Numbered(GraphNode):
    """A task of which Dask's order has to know no more than what it reads."""

    __slots__ = ()

    def __init__(self, number: int, dependencies: frozenset[int]) -> None:
        self.key = number
        self._dependencies = dependencies


def repeatable_order(dsk: Mapping[Key, GraphNode]) -> dict[Key, int]:
    """Return for each task of a graph its place in Dask's order.

    Parameters
    ----------
    dsk
        The tasks by key; they may read results that are not among them.

    Raises
    ------
    ValueError
        The graph has a cycle.
    """
    keys, inputs = as_they_come(dsk)
    first = canonical(keys, inputs)
    # Dask compares keys as strings: all of the same length.
    base = 10 ** len(str(len(keys)))
    number = [0] * len(keys)
    for place, i in enumerate(first, start=base):
        number[i] = place
    nodes: dict[Key, GraphNode] = {}
    for place, i in enumerate(first, start=base):
        node = dsk.get(keys[i])
        if isinstance(node, DataNode):
            nodes[place] = DataNode(place, None)
        elif node is not None:
            nodes[place] = _Numbered(place, frozenset(sorted([number[j] for j in inputs[i]])))
    order = dask.order.order(nodes)
    return {key: order[number[i]] for i, key in enumerate(keys) if key in dsk}


class RepeatableOrder(ArrivingGraphs):
    """Orders the graphs that arrive at one scheduler.

    Parameters
    ----------
    scheduler
        The scheduler.
    counters
        Where to count what fails; Dask orders the graph then.
    """

    def __init__(self, scheduler: Scheduler, counters: Counters) -> None:
        super().__init__(scheduler, _wanted, _in_force)
        self.counters = counters

    def of_message(self, message: dict[str, Any]) -> _Wanted:
        """Return where the order of the graph in a message goes, None if it has one."""
        if message.get("internal_priority"):
            return None
        # Filled in once the graph is there. The scheduler looks after that whether it is empty,
        # and orders the graph itself if so.
        message["internal_priority"] = {}
        return self, message["internal_priority"]


def order_arriving(dsk: Mapping[Key, GraphNode]) -> None:
    """Order the graph that is being read, if that is wanted; in the scheduler's offload thread."""
    wanted = _wanted.get()
    if wanted is None:
        return
    orders, into = wanted
    if len(dsk) == 1:  # as of `Client.submit`: Dask would look for a thread to order it in
        ((key, node),) = dsk.items()
        if key not in node.dependencies:
            into[key] = 0
        return
    try:
        into.update(repeatable_order(dsk))
    except ValueError:
        return  # a cycle: Dask will say so
    except Exception as error:
        orders.counters.caught("order", error)


def order_for(scheduler: Scheduler, dsk: Mapping[Key, GraphNode]) -> dict[Key, int]:
    """Return the order of a graph's tasks as a scheduler would have it.

    Raises
    ------
    RuntimeError
        The graph has a cycle.
    """
    if scheduler in _in_force:
        with contextlib.suppress(ValueError):  # a cycle: Dask tells where
            return repeatable_order(dsk)
    found: dict[Key, int] = dask.order.order(dict(dsk))
    return found
