"""Lists layers of collections in an order independent of the hash seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dask._expr import Expr
from dask._task_spec import Alias, GraphNode, Task, TaskRef
from dask.base import is_dask_collection
from dask.blockwise import Blockwise
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer
from dask.utils import key_split


def layer_names(collections: Iterable[Any]) -> list[str]:
    """Return the names of all layers, each before those that it reads; expressions have none.

    Layers that a layer reads come in the order of its tasks' arguments.
    """
    found: dict[str, None] = {}
    for item in collections:
        if not is_dask_collection(item) or isinstance(getattr(item, "expr", None), Expr):
            continue
        graph = item.__dask_graph__()
        if not isinstance(graph, HighLevelGraph):
            continue
        wanted = (name for key in flatten(item.__dask_keys__()) for name in _named_in(key))
        stack = [name for name in dict.fromkeys(wanted) if name in graph.layers][::-1]
        while stack:
            name = stack.pop()
            if name not in found:
                found[name] = None
                stack.extend(reversed(_read_by(graph, name)))
    return list(found)


def _read_by(graph: HighLevelGraph, name: str) -> list[str]:
    """Return the layers that a layer reads, in the order of its tasks' arguments."""
    left = set(graph.dependencies.get(name, ()))
    own: list[str] = []
    if len(left) > 1 and name in graph.layers:
        for other in _named_by(graph.layers[name]):
            if other in left:
                left.remove(other)
                own.append(other)
                if not left:
                    break
    return own + sorted(left, key=lambda other: (key_split(other), other))


def _named_by(layer: Layer) -> Iterator[Any]:
    if isinstance(layer, Blockwise):
        for read, _ in layer.indices:
            yield read.key if isinstance(read, TaskRef) else read
    elif isinstance(layer, MaterializedLayer):
        for task in layer.mapping.values():
            yield from _named_in(task)


def _named_in(value: Any) -> Iterator[Any]:
    """Yield possible names of layers: the first part of each key in a task."""
    if isinstance(value, Task):
        yield from _named_in([*value.args, *value.kwargs.values()])
    elif isinstance(value, Alias):
        yield from _named_in(value.target)
    elif isinstance(value, TaskRef):
        yield from _named_in(value.key)
    elif isinstance(value, str):
        yield value
    elif isinstance(value, tuple) and value and isinstance(value[0], str):
        yield value[0]
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _named_in(part)
    elif isinstance(value, dict):
        yield from _named_in(list(value.values()))
    elif isinstance(value, GraphNode):
        yield from sorted(map(str, value.dependencies))
