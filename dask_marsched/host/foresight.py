"""What the graph tells of a task's future, told to its worker together with the task.

It travels as an annotation: a worker without this package does not look at it.
"""

from __future__ import annotations

from typing import Any

from distributed.worker_state_machine import TaskState

ANNOTATION = "marsched"


def told(nbytes: int | None) -> dict[str, Any]:
    """Return what to tell of a task that is sent.

    Parameters
    ----------
    nbytes
        Size of its result, bytes; None where it is not known.
    """
    return {} if nbytes is None else {"nbytes": nbytes}


def known_nbytes(ts: TaskState) -> int | None:
    """Return the size of a result that is not there yet, as the scheduler told; None if unknown."""
    nbytes: int | None = ((ts.annotations or {}).get(ANNOTATION) or {}).get("nbytes")
    return nbytes
