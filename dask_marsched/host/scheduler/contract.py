"""Lists what the scheduler adapter touches in distributed, and checks it before any change."""

from __future__ import annotations

from typing import Any

from distributed import scheduler as scheduler_module

from dask_marsched.host.contract import (
    misfits_of_attributes,
    misfits_of_function,
    misfits_of_handler,
)

#: Entries of the transition table that the adapter replaces.
REPLACED_TRANSITIONS = (
    ("waiting", "processing"),
    ("waiting", "queued"),
    ("no-worker", "processing"),
    ("queued", "processing"),
    ("queued", "released"),
    ("queued", "erred"),
)

#: Methods of the scheduler that the adapter replaces or calls, with the parameters it uses.
_METHODS: dict[str, tuple[str, ...]] = {
    "transitions": ("recommendations", "stimulus_id"),
    "stimulus_queue_slots_maybe_opened": ("stimulus_id",),
    "handle_long_running": ("key", "worker", "run_id", "compute_duration", "stimulus_id"),
    "send_all": ("client_msgs", "worker_msgs"),
    "stimulus_task_finished": ("key", "worker", "stimulus_id"),
    "_transitions": ("recommendations", "client_msgs", "worker_msgs", "stimulus_id"),
    "stimulus_task_erred": ("worker", "stimulus_id", "key", "run_id"),
    "add_plugin": ("plugin",),
    "remove_plugin": ("name",),
    "is_rootish": ("ts",),
    "_add_to_processing": ("ts", "ws", "stimulus_id"),
    "_create_taskstate_from_graph": ("dsk", "keys", "ordered", "stimulus_id"),
    "_task_to_msg": ("ts",),
    "_validate_ready": ("ts",),
    "add_keys": ("worker", "keys", "stimulus_id"),
    "update_graph": ("internal_priority",),
    "request_remove_replicas": ("addr", "keys", "stimulus_id"),
}

_ATTRIBUTES = (
    "WORKER_SATURATION",
    "_active_graph_updates",
    "bandwidth",
    "extensions",
    "idle",
    "idle_task_count",
    "queued",
    "running",
    "stream_comms",
    "tasks",
    "unrunnable",
    "validate",
    "workers",
)


def misfits(scheduler: Any) -> list[str]:
    """Return what the adapter does not find as expected in a running scheduler."""
    found = misfits_of_attributes("Scheduler", scheduler, _ATTRIBUTES)
    for name, parameters in _METHODS.items():
        found += misfits_of_function("Scheduler", scheduler, name, parameters)
    table = getattr(type(scheduler), "_TRANSITIONS_TABLE", {})
    for entry in REPLACED_TRANSITIONS:
        expected = f"_transition_{'_'.join(entry)}".replace("-", "_")
        if getattr(table.get(entry), "__name__", None) != expected:
            found.append(f"the transition {entry} is not {expected}")
    found += misfits_of_function(
        "distributed.scheduler", scheduler_module, "_materialize_graph", ("expr", "validate")
    )
    found += misfits_of_function("distributed.scheduler", scheduler_module, "offload", ("func",))
    found += misfits_of_handler(scheduler, "stream_handlers", "add-keys", "add_keys")
    stealing = getattr(scheduler, "extensions", {}).get("stealing")
    if stealing is not None:
        for name in ("_get_thief", "_remove_from_in_flight"):
            found += misfits_of_function("stealing", stealing, name, ("ts",))
        found += [
            f"stealing.{name} is no dictionary"
            for name in ("in_flight", "in_flight_tasks")
            if not isinstance(getattr(stealing, name, None), dict)
        ]
    return found
