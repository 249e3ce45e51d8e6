"""Packs many tasks into one message: those to compute for a worker, and results for the scheduler.

The scheduler packs tasks only for workers whose heartbeat reports the part ``runs``. A worker packs
results once it has received such a message. The handlers stay when the plugin is removed, as
messages may still be under way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from distributed.protocol.serialize import ToPickle

#: Operations.
COMPUTE, FINISHED = "marsched-compute-tasks", "marsched-tasks-finished"
#: Fewer tasks than this travel in messages of their own.
LEAST_TASKS = 4


def pack_tasks(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages to a worker, with those that follow one another to compute tasks in one."""
    packed: list[dict[str, Any]] = []
    tasks: list[dict[str, Any]] = []
    for message in messages:
        if message.get("op") == "compute-task":
            tasks.append(message)
            continue
        _close(packed, tasks)
        tasks = []
        packed.append(message)
    _close(packed, tasks)
    return packed


def _close(packed: list[dict[str, Any]], tasks: list[dict[str, Any]]) -> None:
    if len(tasks) < LEAST_TASKS:
        packed += tasks
        return
    fields = [k for k in tasks[0] if k not in ("op", "run_spec")]
    rows = [([m[k] for k in fields], m["run_spec"].data) for m in tasks]
    packed.append({"op": COMPUTE, "fields": fields, "tasks": ToPickle(rows)})


def unpack_tasks(fields: list[str], tasks: Iterable[tuple[list[Any], Any]]) -> list[dict[str, Any]]:
    """Return the fields of the single messages."""
    return [
        dict(zip(fields, values, strict=True)) | {"run_spec": run_spec}
        for values, run_spec in tasks
    ]
