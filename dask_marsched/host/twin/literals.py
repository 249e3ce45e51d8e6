"""Finds data in the arguments of tasks, and makes placeholders for results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dask._task_spec import DataNode, Task
from dask.sizeof import sizeof


def placeholder_data(key: Any) -> Any:
    """Return a data node in place of a computed result; its value is left out."""
    return DataNode(key, None)


def placeholder_task(key: Any) -> Any:
    """Return a task in place of a result that the cluster already holds; it is never run."""
    return Task(key, _never_run)


def _never_run() -> None:
    raise RuntimeError("a result that is on the cluster is not computed again")


def parts_of(tasks: Iterable[Any]) -> Iterator[Any]:
    """Yield all arguments of tasks, and the values inside of them."""
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
    """Return the bytes of the arrays and frames inside of tasks, each counted once."""
    total = 0
    seen: set[int] = set()
    for node in parts_of(tasks):
        if (hasattr(node, "shape") or isinstance(node, bytes)) and id(node) not in seen:
            seen.add(id(node))
            total += sizeof(node)
    return total
