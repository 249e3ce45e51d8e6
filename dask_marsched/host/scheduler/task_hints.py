"""Reads and writes the annotation by which the scheduler tells a worker more about a task."""

from __future__ import annotations

from typing import Any

from distributed.worker_state_machine import TaskState

ANNOTATION = "marsched"


def hints(nbytes: int | None, shared: bool = False, suspicious: bool = False) -> dict[str, Any]:
    """Return the hints on a task: the bytes of its result if known, and what else is true of it."""
    found: dict[str, Any] = {} if nbytes is None else {"nbytes": nbytes}
    flags = {"shared": shared, "suspicious": suspicious}
    return found | {name: True for name, is_true in flags.items() if is_true}


def known_nbytes(ts: TaskState) -> int | None:
    """Return the expected size of a task's result, bytes; None if the scheduler gave none."""
    nbytes: int | None = _of(ts).get("nbytes")
    return nbytes


def is_shared(ts: TaskState) -> bool:
    """Return whether another worker of the same machine is expected to read a task's result."""
    return bool(_of(ts).get("shared"))


def is_suspicious(ts: TaskState) -> bool:
    """Return whether a worker has died while it had a task of the same operation."""
    return bool(_of(ts).get("suspicious"))


def _of(ts: TaskState) -> dict[str, Any]:
    return (ts.annotations or {}).get(ANNOTATION) or {}
