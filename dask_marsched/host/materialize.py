"""Sizes known before the run travel with the graph from materialization to the task states."""

from __future__ import annotations

import logging
import threading
from typing import Any

from dask.typing import Key
from distributed import scheduler as scheduler_module

from dask_marsched.host.graph import ChunkSizes, chunk_nbytes

logger = logging.getLogger("dask_marsched")


class SizedGraph(dict[Key, Any]):
    """A materialized graph together with what is known of its results' sizes."""

    __slots__ = ("sizes",)

    sizes: ChunkSizes


_lock = threading.Lock()
_users = 0
_stock: Any = None


def _materialize_sized_graph(expr: Any, validate: bool) -> tuple[dict[Key, Any], Any]:
    """Do as `distributed.scheduler._materialize_graph`, and derive sizes from the expression.

    Runs in the scheduler's offload thread, so that it does not block the event loop.
    """
    dsk, annotations = _stock(expr=expr, validate=validate)
    try:
        sizes = chunk_nbytes(expr, dsk)
    except Exception:
        logger.exception("sizes could not be derived from the graph; they will be learned")
        return dsk, annotations
    sized = SizedGraph(dsk)
    sized.sizes = sizes
    return sized, annotations


def patch() -> None:
    """Have every scheduler of this process derive sizes; undone by as many `unpatch`."""
    global _users, _stock
    with _lock:
        if not _users:
            _stock = scheduler_module._materialize_graph
            scheduler_module._materialize_graph = _materialize_sized_graph
        _users += 1


def unpatch() -> None:
    """Undo one `patch`."""
    global _users
    with _lock:
        _users -= 1
        if not _users:
            scheduler_module._materialize_graph = _stock
