"""Checks what the worker's adapter relies on in distributed before it changes anything."""

from __future__ import annotations

from typing import Any

from distributed import worker_state_machine as events

from dask_marsched.host.contract import misfits_of_function, misfits_of_paths
from dask_marsched.host.worker import shuffle_buffers

_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "worker": (
        "handlers",
        "status",
        "transfer_outgoing_count",
        "transfer_outgoing_count_limit",
    ),
    "worker.memory_manager": (
        "memory_limit",
        "memory_pause_fraction",
        "memory_spill_fraction",
        "memory_target_fraction",
    ),
    "worker.state": (
        "constrained",
        "data_needed",
        "executing",
        "long_running",
        "nthreads",
        "ready",
        "running",
        "tasks",
        "transfer_incoming_bytes",
        "transfer_incoming_bytes_limit",
        "waiting",
    ),
}

#: Functions that are replaced or called, with the parameters used.
_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "worker.execute": ("key", "stimulus_id"),
    "worker.get_data": ("comm", "keys", "who", "serializers"),
    "worker.handle_stimulus": ("stims",),
    "worker.log_event": ("topic", "msg"),
    "worker.memory_manager._maybe_pause_or_unpause": ("worker", "memory"),
    "worker.monitor.get_process_memory": (),
    "worker.state.handle_stimulus": ("stims",),
    "worker.state._next_ready_task": (),
    "worker.state._should_throttle_incoming_transfers": (),
    "worker.state._resource_restrictions_satisfied": ("ts",),
}


def misfits(worker: Any) -> list[str]:
    """Return how a worker differs from what the adapter expects; empty if it does not."""
    found = misfits_of_paths(worker, _ATTRIBUTES, _FUNCTIONS)
    # The state's class is exchanged, which works only without a dictionary.
    if hasattr(getattr(worker, "state", None), "__dict__"):
        found.append("worker.state has a __dict__")
    found += misfits_of_function("events", events, "UnpauseEvent", ("stimulus_id",))
    found += misfits_of_function("events", events, "ComputeTaskEvent", ("annotations",))
    if (shuffles := getattr(worker, "plugins", {}).get("shuffle")) is not None:
        found += shuffle_buffers.misfits(shuffles)
    return found
