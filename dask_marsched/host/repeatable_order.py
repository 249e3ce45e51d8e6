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
from typing import Any

import dask.order
from dask._task_spec import DataNode, GraphNode
from dask.typing import Key
from dask.utils import key_split
from distributed.scheduler import Scheduler

from dask_marsched.core.canonical import canonical_order
from dask_marsched.counters import Counters
from dask_marsched.host.numbered import numbered

#: What the order of the graph that is being read goes to, in the coroutine of the scheduler that
#: reads it and in the thread that it hands the work to.
_wanted: contextvars.ContextVar[tuple[RepeatableOrder, dict[Key, int]] | None]
_wanted = contextvars.ContextVar("order", default=None)

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
    keys, inputs = numbered(dsk)
    parts = [
        (str(key[0]), key[1:]) if isinstance(key, tuple) and key else (str(key), ()) for key in keys
    ]
    names = [name for name, _ in parts]
    words = {name: key_split(name) for name in dict.fromkeys(names)}
    canonical = canonical_order(names, [index for _, index in parts], words, inputs)
    # Dask compares keys as strings: all of the same length.
    base = 10 ** len(str(len(keys)))
    number = [0] * len(keys)
    for place, i in enumerate(canonical, start=base):
        number[i] = place
    nodes: dict[Key, GraphNode] = {}
    for place, i in enumerate(canonical, start=base):
        node = dsk.get(keys[i])
        if isinstance(node, DataNode):
            nodes[place] = DataNode(place, None)
        elif node is not None:
            nodes[place] = _Numbered(place, frozenset([number[j] for j in inputs[i]]))
    order = dask.order.order(nodes)
    return {key: order[number[i]] for i, key in enumerate(keys) if key in dsk}


class RepeatableOrder:
    """Orders the graphs that arrive at one scheduler.

    Parameters
    ----------
    scheduler
        The scheduler.
    counters
        Where to count what fails; Dask orders the graph then.
    """

    def __init__(self, scheduler: Scheduler, counters: Counters) -> None:
        self.scheduler: Any = scheduler
        self.counters = counters
        self._stock: Any = None

    def install(self) -> None:
        """Come before the scheduler's handler of graphs, whoever's that is."""
        handlers = self.scheduler.stream_handlers
        self._stock = handlers["update-graph"]
        handlers["update-graph"] = self._update_graph
        _in_force[self.scheduler] = self

    def uninstall(self) -> None:
        """Leave that place."""
        handlers = self.scheduler.stream_handlers
        if handlers["update-graph"] == self._update_graph:  # else somebody came before us
            handlers["update-graph"] = self._stock
        _in_force.pop(self.scheduler, None)

    async def _update_graph(self, **message: Any) -> None:
        if _in_force.get(self.scheduler) is self and not message.get("internal_priority"):
            # Filled in once the graph is there. The scheduler looks after that whether it is
            # empty, and orders the graph itself if so.
            message["internal_priority"] = {}
            _wanted.set((self, message["internal_priority"]))
        try:
            await self._stock(**message)
        finally:
            _wanted.set(None)


def order_arriving(dsk: Mapping[Key, GraphNode]) -> None:
    """Order the graph that is being read, if that is wanted; in the scheduler's offload thread."""
    wanted = _wanted.get()
    if wanted is None:
        return
    orders, into = wanted
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
