"""What the graph tells of a task's future, told to its worker together with the task.

It travels as an annotation: a worker without this package does not look at it.
"""

from __future__ import annotations

from typing import Any

from distributed.worker_state_machine import TaskState

ANNOTATION = "marsched"


def told(nbytes: int | None, shared: bool = False) -> dict[str, Any]:
    """Return what to tell of a task that is sent.

    Parameters
    ----------
    nbytes
        Size of its result, bytes; None where it is not known.
    shared
        Whether another worker of the host will read the result, as far as is known.
    """
    told: dict[str, Any] = {} if nbytes is None else {"nbytes": nbytes}
    if shared:
        told["shared"] = True
    return told


def known_nbytes(ts: TaskState) -> int | None:
    """Return the size of a result that is not there yet, as the scheduler told; None if unknown."""
    nbytes: int | None = _told(ts).get("nbytes")
    return nbytes


def is_shared(ts: TaskState) -> bool:
    """Tell whether the scheduler expects another worker of the host to read a task's result."""
    return bool(_told(ts).get("shared"))


def _told(ts: TaskState) -> dict[str, Any]:
    return (ts.annotations or {}).get(ANNOTATION) or {}
