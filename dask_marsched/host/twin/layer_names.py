"""Lists layers of collections in an order independent of the hash seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dask._expr import Expr
from dask._task_spec import Alias, GraphNode, Task, TaskRef
from dask.base import is_dask_collection
from dask.blockwise import Blockwise
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer
from dask.typing import Key
from dask.utils import key_split


def layer_names(collections: Iterable[Any]) -> list[str]:
    """Return the names of all layers, each before those that it reads; expressions have none.

    Layers that a layer reads come in the order of its tasks' arguments. A delayed object's layer
    holds the tasks of what it was called with: their names are found there, in the same order.
    """
    found: dict[str, None] = {}
    for item in collections:
        if not is_dask_collection(item) or isinstance(getattr(item, "expr", None), Expr):
            continue
        graph = item.__dask_graph__()
        if not isinstance(graph, HighLevelGraph):
            continue
        tasks = _tasks_in_layers_of_others(graph)
        keys = flatten(item.__dask_keys__())
        wanted = dict.fromkeys(ref for key in keys for ref in _keys_in(key))
        stack = [key for key in wanted if _name(key) in graph.layers or key in tasks][::-1]
        seen: set[Key] = set()
        while stack:
            key = stack.pop()
            name = _name(key)
            read: list[Any] = []
            if key in tasks and key not in seen:
                seen.add(key)
                read = [ref for ref in _keys_in(tasks[key]) if _is_in(ref, tasks)]
            if name not in found:
                found[name] = None
                read += _read_by(graph, name)
            stack.extend(reversed(read))
    return list(found)


def _tasks_in_layers_of_others(graph: HighLevelGraph) -> dict[Key, Any]:
    """Return the tasks of layers that hold keys of other names than their own."""
    found: dict[Key, Any] = {}
    for name, layer in graph.layers.items():
        if isinstance(layer, MaterializedLayer) and any(_name(key) != name for key in layer):
            found.update(layer.mapping)
    return found


def _is_in(ref: Any, tasks: Mapping[Key, Any]) -> bool:
    try:
        return ref in tasks
    except TypeError:  # a tuple that only looks like a key: a list is in it
        return False


def _name(key: Key) -> Any:
    return key[0] if isinstance(key, tuple) and key else key


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
            yield from map(_name, _keys_in(task))


def _keys_in(value: Any) -> Iterator[Any]:
    """Yield what may be keys in a task, in the order of its arguments."""
    if isinstance(value, Task):
        yield from _keys_in([*value.args, *value.kwargs.values()])
    elif isinstance(value, Alias):
        yield from _keys_in(value.target)
    elif isinstance(value, TaskRef):
        yield from _keys_in(value.key)
    elif isinstance(value, str) or (
        isinstance(value, tuple) and value and isinstance(value[0], str)
    ):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _keys_in(part)
    elif isinstance(value, dict):
        yield from _keys_in(list(value.values()))
    elif isinstance(value, GraphNode):
        yield from sorted(map(str, value.dependencies))
