"""Removes the logs from distributed's state machine of a worker.

For a thousand simulated workers they would take a gigabyte.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any

from distributed.worker_state_machine import Instructions, StateMachineEvent, WorkerState


class TwinWorkerState(WorkerState):
    """Decides exactly as its base class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.log = deque(maxlen=0)
        self.stimulus_log = deque(maxlen=0)

    def handle_stimulus(self, *stims: StateMachineEvent) -> Instructions:
        """Handle events without copying them for the log."""
        instructions: Instructions = []
        for stim in stims:
            recommendations, first = _handler(type(stim))(self, stim)  # type: ignore[arg-type]  # a class hashes
            instructions += first
            instructions += self._transitions(recommendations, stimulus_id=stim.stimulus_id)
        return instructions


@functools.cache
def _handler(event: type[StateMachineEvent]) -> Callable[..., Any]:
    """Return the method for a kind of event.

    `singledispatchmethod` is slow: it makes a new function for every call.
    """
    handler: Callable[..., Any] = vars(WorkerState)["_handle_event"].dispatcher.dispatch(event)
    return handler
