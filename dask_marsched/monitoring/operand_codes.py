"""Translates transitions of Dask into the observer's operand codes and causes of failure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask.typing import Key
from dask.utils import key_split

from dask_marsched.core.graph_record import (
    CANCELLED,
    FATAL,
    FINISHED,
    FREED,
    READY,
    SENT,
    WAITING,
)

_CHARACTERS = 120

#: The code after each transition but `ENDS`.
CODE_OF: Mapping[str, int] = {
    "waiting": WAITING,
    "no-worker": READY,
    "queued": READY,
    "processing": SENT,
    "memory": FINISHED,
    "erred": FATAL,
}
#: Final states of transitions whose code depends on what was before.
ENDS = ("released", "forgotten")
#: The code after each transition of an operand that was computed before it ends.
FREQUENT = {**CODE_OF, **dict.fromkeys(ENDS, FREED)}
#: Explanations of the stimuli by which Dask cancels operands.
_WHY = {
    "cancel-key": "cancelled by a client",
    "client-releases-keys": "its client dropped the future",
    "remove-client": "its client left",
}


def code_of(ts: Any) -> int:
    """Return the code of a task in its present state."""
    code = CODE_OF.get(ts.state)
    return code if code is not None else (FREED if ts.nbytes >= 0 else WAITING)


def cause_of_failure(ts: Any) -> tuple[str, str, str]:
    """Return state, operation and cause of an operand that failed."""
    first = ts.exception_blame or ts
    lines = (first.exception_text or "").splitlines()
    why = lines[0] if lines else "it failed"
    return "fatal", key_split(first.key), why[:_CHARACTERS]


def cause_of_end(key: Key, stimulus_id: str) -> tuple[str, str, str]:
    """Return state, operation and cause of an operand that was cancelled."""
    stimulus = stimulus_id.rsplit("-", 1)[0]
    return "cancelled", key_split(key), _WHY.get(stimulus, "not wanted any more")


def code_at_end(before: int | None, finish: str, stimulus_id: str | None) -> int:
    """Return the code of a released or forgotten operand; no stimulus if it was computed."""
    if stimulus_id is None or before in (FINISHED, FREED):
        return FREED
    return CANCELLED if finish == "forgotten" else WAITING
