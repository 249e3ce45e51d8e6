"""Derives sizes of each graph, fuses tasks and orders them, when the scheduler materializes it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

import dask.order
from dask._expr import LLGExpr
from dask.typing import Key
from distributed import scheduler as scheduler_module
from distributed.scheduler import Scheduler

from dask_marsched.host.graph import blockwise_tasks, connected_roots, order_dependencies
from dask_marsched.host.graph.array_layers import may_have_more_tasks
from dask_marsched.host.graph.fusion import (
    FusionRequest,
    current,
    fuse_arriving,
    fuse_as_before,
    in_force,
)
from dask_marsched.host.graph.result_sizes import ChunkSizes, chunk_nbytes
from dask_marsched.host.graph.task_order import order_and_free, order_arriving
from dask_marsched.host.replacements import Replacements
from dask_marsched.host.scheduler.garbage_collection import collector_paused
from dask_marsched.host.scheduler.graph_requests import reading

logger = logging.getLogger("dask_marsched")


class SizedGraph(dict[Key, Any]):
    """A materialized graph with the known sizes of its results.

    ``trees`` are the steps of joined reductions (`FusionRequest.trees`), for the order;
    ``prepared`` is what was prepared for the plan (`RepeatableOrder.prepared`).
    """

    __slots__ = ("prepared", "sizes", "trees")

    sizes: ChunkSizes
    trees: Mapping[Key, Iterable[Key]]
    prepared: Any


_lock = threading.Lock()
_users = 0
_undo = Replacements()
_stock: Any = None
_stock_offload: Any = None

#: Most tasks of graphs that are read on the event loop: low-level ones, for up to 1 ms, and array
#: expressions, for up to 10 ms.
_TINY, _SMALL = 4, 200


def _materialize_sized_graph(expr: Any, validate: bool) -> tuple[dict[Key, Any], Any]:
    """Replace `distributed.scheduler._materialize_graph`, in the scheduler's offload thread."""
    with collector_paused():
        dsk, annotations = _stock(expr=expr, validate=validate)
        sizes = _sizes(expr, dsk)
        left = SizedGraph(fuse_arriving(dsk, annotations, sizes))
        left.sizes = sizes
        request = current.get()
        left.trees = request.trees if request is not None else {}
        # The scheduler has yet to remove the unwanted tasks of an `LLGExpr`.
        if len(left) == 1 or not isinstance(expr, LLGExpr):
            left.prepared = order_arriving(left, sizes)
        return left, annotations


def _sizes(expr: Any, dsk: Mapping[Key, Any]) -> ChunkSizes:
    try:
        return chunk_nbytes(expr, dsk)
    except Exception:
        logger.exception("sizes could not be derived from the graph; they will be learned")
        return ChunkSizes()


def _offload(func: Any, /, *args: Any, **kwargs: Any) -> Awaitable[Any]:
    """Replace `distributed.scheduler.offload`; small graphs are read at once, without a thread."""
    if func is _materialize_sized_graph and _is_alone() and _is_small(kwargs.get("expr")):
        return _at_once(func, kwargs)
    if func is dask.order.order:
        func = order_and_free
    found: Awaitable[Any] = _stock_offload(func, *args, **kwargs)
    return found


def _is_alone() -> bool:
    """Whether this is the only graph being read. It may use results of others, so it must wait."""
    scheduler: Any = reading.get()
    return scheduler is not None and scheduler._active_graph_updates == 1


def _is_small(expr: Any) -> bool:
    if isinstance(expr, LLGExpr):
        return len(expr.operand("dsk")) <= _TINY
    return not may_have_more_tasks(expr, _SMALL)


async def _at_once(func: Any, kwargs: dict[str, Any]) -> Any:
    return func(**kwargs)


def materialize_again(
    scheduler: Scheduler,
    expr: Any,
    chosen: list[list[Key]],
    groups: Mapping[Key, list[Key]],
) -> tuple[dict[Key, Any], Any, ChunkSizes]:
    """Return a graph's tasks, fused as another scheduler has done it, annotations and sizes."""
    stock = _stock or scheduler_module._materialize_graph
    with collector_paused():
        dsk, annotations = stock(expr=expr, validate=scheduler.validate)
        sizes = _sizes(expr, dsk)
        if (fusion := in_force.get(scheduler)) is not None:
            fusion.has_fused(groups)
        return fuse_as_before(dsk, chosen, groups, sizes), annotations, sizes


def fuse_for(
    scheduler: Scheduler,
    dsk: dict[Key, Any],
    keys: Collection[Key],
    annotations: Mapping[str, Mapping[Key, Any]],
    general: Mapping[str, Any],
) -> tuple[dict[Key, Any], dict[Key, list[Key]], dict[Key, list[Key]]]:
    """Fuse the tasks of a graph as a scheduler does that gets it from a client.

    ``annotations`` are by kind and key, ``general`` those of all tasks without their own. Returns
    the remaining tasks, the keys of fused tasks by the key of the task that replaces them, and the
    tasks in bundles (`FusionRequest.bundles`).
    """
    fusion = in_force.get(scheduler)
    if fusion is None:
        return dsk, {}, {}
    request = FusionRequest(fusion, keys, general)
    token = current.set(request)
    try:
        sizes = getattr(dsk, "sizes", None)
        left = SizedGraph(fuse_arriving(dsk, annotations, sizes))
    finally:
        current.reset(token)
    fusion.count(request)
    if sizes is not None:
        left.sizes, left.trees = sizes, request.trees
    return left, request.groups, request.bundles


def patch() -> None:
    """Have this process read graphs in this way, until as many calls of `unpatch`."""
    global _users, _stock, _stock_offload
    with _lock:
        if not _users:
            replace = partial(_undo.attribute, scheduler_module)
            _stock = replace("_materialize_graph", _materialize_sized_graph)
            _stock_offload = replace("offload", _offload)
            for part in (blockwise_tasks, order_dependencies, connected_roots):
                part.install(_undo)
        _users += 1


def unpatch() -> None:
    """Undo one `patch`."""
    global _users
    with _lock:
        _users -= 1
        if not _users:
            _undo.close()
