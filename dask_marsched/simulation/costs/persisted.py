"""Wraps graphs as collections whose results stay on the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import dask
import dask.threaded
from dask.base import DaskMethodsMixin, collections_to_expr
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph


class PersistedGraph(DaskMethodsMixin):
    """A collection whose chunks are not put together; ``optimize`` is Dask's function, or None."""

    __dask_scheduler__ = staticmethod(dask.threaded.get)

    def __init__(
        self, graph: Mapping[Any, Any], keys: Iterable[Any], optimize: Callable[..., Any] | None
    ) -> None:
        self._graph = graph
        self._keys = list(keys)
        self.__dask_optimize__ = optimize

    def __dask_graph__(self) -> Mapping[Any, Any]:
        return self._graph

    def __dask_keys__(self) -> list[Any]:
        return self._keys

    def __dask_tokenize__(self) -> list[Any]:
        return self._keys

    def __dask_postcompute__(self) -> tuple[()]:
        return ()  # no task gathers the results

    def __dask_postpersist__(self) -> tuple[Any, tuple[Any, ...]]:
        return _rebuild, (self._keys,)


def _rebuild(graph: Mapping[Any, Any], keys: list[Any], **_: Any) -> PersistedGraph:
    return PersistedGraph(graph, keys, None)


def as_persisted(collections: Iterable[Any]) -> list[PersistedGraph]:
    """Return collections that compute what these would persist."""
    found = []
    for item in collections:
        if not dask.is_dask_collection(item):
            raise TypeError(f"not a Dask collection: {type(item).__name__}")
        graph = getattr(item, "dask", None)
        if isinstance(graph, HighLevelGraph) and not hasattr(item, "expr"):
            optimize = item.__dask_optimize__
            found.append(PersistedGraph(graph, flatten(item.__dask_keys__()), optimize))
        else:
            expr = collections_to_expr(item).optimize()
            found.append(PersistedGraph(expr.__dask_graph__(), flatten(expr.__dask_keys__()), None))
    return found
