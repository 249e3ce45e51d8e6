"""What tasks are made of, and stand-ins for results that are there already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dask._task_spec import DataNode, Task
from dask.sizeof import sizeof


def placeholder_data(key: Any) -> Any:
    """Return a task that stands for a known result, without the result."""
    return DataNode(key, None)


def placeholder_task(key: Any) -> Any:
    """Return a task that stands for a result that is on the cluster already.

    It is never run. What is known of its size is known by its key, as of any other task.
    """
    return Task(key, _held)


def _held() -> None:
    raise RuntimeError("a result that is on the cluster is not computed again")


def parts_of(tasks: Iterable[Any]) -> Iterator[Any]:
    """Yield what tasks are made of: everything that is an argument, or inside of one."""
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
        yield node


def data_nbytes(tasks: Iterable[Any]) -> int:
    """Return the bytes of arrays, frames and the like that are part of tasks, each counted once."""
    total = 0
    seen: set[int] = set()
    for node in parts_of(tasks):
        if (hasattr(node, "shape") or isinstance(node, bytes)) and id(node) not in seen:
            seen.add(id(node))
            total += sizeof(node)
    return total
