"""Finds the calls of P2P shuffles in tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dask._task_spec import Task, _execute_subgraph
from distributed.shuffle._merge import merge_unpack
from distributed.shuffle._rechunk import rechunk_unpack
from distributed.shuffle._shuffle import shuffle_unpack


def calls(node: Any) -> Iterator[Task]:
    """Yield the calls in a task, including those inside of fused ones."""
    if not isinstance(node, Task):
        return
    if node.func is _execute_subgraph:
        for inner in node.args[0].values():
            yield from calls(inner)
        return
    yield node
    for argument in node.args:
        yield from calls(argument)


def output_partitions(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield the shuffle and the partition of each output partition that a task puts together."""
    for call in calls(node):
        if call.func is rechunk_unpack or call.func is shuffle_unpack:
            yield call.args[0], call.args[1]
        elif call.func is merge_unpack:
            yield call.args[0], call.args[2]
            yield call.args[1], call.args[2]
