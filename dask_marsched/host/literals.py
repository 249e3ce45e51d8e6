"""Data that stand in a graph as they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dask._task_spec import DataNode, Task
from dask.sizeof import sizeof


def as_data(key: Any) -> Any:
    """Return a task that stands for a known result, without the result."""
    return DataNode(key, None)


def data_nbytes(tasks: Iterable[Any]) -> int:
    """Return the bytes of arrays, frames and the like that are part of tasks, each counted once."""
    total = 0
    seen: set[int] = set()
    stack = list(tasks)
    while stack:
        node = stack.pop()
        if isinstance(node, DataNode):
            node = node.value
        elif isinstance(node, Task):
            stack += [*node.args, *node.kwargs.values()]
            continue
        elif isinstance(node, dict):  # the small graph inside a fused task
            stack += node.values()
            continue
        if (hasattr(node, "shape") or isinstance(node, bytes)) and id(node) not in seen:
            seen.add(id(node))
            total += sizeof(node)
    return total
