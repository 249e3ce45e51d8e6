"""Makes simulated workers' state machines without logs, which take a gigabyte for 1,000 workers."""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import dask
from dask.utils import parse_bytes
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
    """Return an event's method; `singledispatchmethod` is slow, it makes a function every time."""
    handler: Callable[..., Any] = vars(WorkerState)["_handle_event"].dispatcher.dispatch(event)
    return handler


#: Replaces a state machine's statistics of tasks, which decide nothing.
_NO_COUNTER: Any = SimpleNamespace(new_task=lambda task: None, transitions=lambda before: None)


def state_machine(
    address: str, threads: int, memory_limit: int, resources: Mapping[str, float], validate: bool
) -> WorkerState:
    """Return a worker's state machine, configured as ``distributed.worker.Worker`` does."""
    get = dask.config.get
    share = get("distributed.worker.memory.transfer")
    # The logs explain violated invariants.
    state = (WorkerState if validate else TwinWorkerState)(
        nthreads=threads,
        address=address,
        validate=validate,
        resources=resources,
        transfer_incoming_count_limit=get("distributed.worker.connections.incoming"),
        transfer_incoming_bytes_limit=int(memory_limit * share) if share else math.inf,
        transfer_message_bytes_limit=parse_bytes(
            get("distributed.worker.transfer.message-bytes-limit")
        ),
    )
    if not validate:
        state.task_counter = _NO_COUNTER
    return state
