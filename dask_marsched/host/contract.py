"""What the adapter relies on in distributed, verified before anything is changed."""

from __future__ import annotations

import inspect
from typing import Any

import distributed
from distributed import scheduler as scheduler_module

#: Entries of the transition table that the adapter replaces.
REPLACED_TRANSITIONS = (
    ("waiting", "processing"),
    ("waiting", "queued"),
    ("queued", "processing"),
    ("queued", "released"),
    ("queued", "erred"),
)

#: Methods of the scheduler that the adapter replaces or calls, with the parameters it uses.
_METHODS: dict[str, tuple[str, ...]] = {
    "transitions": ("recommendations", "stimulus_id"),
    "stimulus_queue_slots_maybe_opened": ("stimulus_id",),
    "handle_long_running": ("key", "worker", "run_id", "compute_duration", "stimulus_id"),
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
    "bandwidth",
    "extensions",
    "idle",
    "idle_task_count",
    "queued",
    "running",
    "tasks",
    "validate",
    "workers",
)


def misfits(scheduler: Any) -> list[str]:
    """Return what in a scheduler is not as the adapter expects it; empty if all is well.

    Parameters
    ----------
    scheduler
        A running `distributed.Scheduler`.
    """
    found = [f"Scheduler has no attribute {a}" for a in _ATTRIBUTES if not hasattr(scheduler, a)]
    for name, parameters in _METHODS.items():
        found.extend(_misfits_of_function(f"Scheduler.{name}", scheduler, name, parameters))
    table = getattr(type(scheduler), "_TRANSITIONS_TABLE", {})
    for entry in REPLACED_TRANSITIONS:
        function = table.get(entry)
        expected = f"_transition_{entry[0]}_{entry[1]}"
        if getattr(function, "__name__", None) != expected:
            found.append(f"the transition {entry} is not {expected}")
    found.extend(
        _misfits_of_function(
            "distributed.scheduler._materialize_graph",
            scheduler_module,
            "_materialize_graph",
            ("expr", "validate"),
        )
    )
    handler = getattr(scheduler, "stream_handlers", {}).get("add-keys")
    if getattr(handler, "__name__", None) != "add_keys":
        found.append("the stream handler 'add-keys' is not Scheduler.add_keys")
    stealing = getattr(scheduler, "extensions", {}).get("stealing")
    if stealing is not None:
        for name in ("_get_thief", "_remove_from_in_flight"):
            found.extend(_misfits_of_function(f"stealing.{name}", stealing, name, ("ts",)))
        found += [
            f"stealing.{name} is no dictionary"
            for name in ("in_flight", "in_flight_tasks")
            if not isinstance(getattr(stealing, name, None), dict)
        ]
    return found


def explain(found: list[str], so: str = "stock scheduling stays in force") -> str:
    """Return one sentence on what is not as it should be, and what comes of it."""
    return (
        f"distributed {distributed.__version__} is not as dask_marsched expects it "
        f"({'; '.join(found)}): {so}"
    )


def demand(found: list[str], so: str) -> None:
    """Raise an error if something is not as it should be.

    Raises
    ------
    RuntimeError
        It tells what, and what comes of it.
    """
    if found:
        raise RuntimeError(explain(found, so))


def _misfits_of_function(
    label: str, owner: Any, name: str, parameters: tuple[str, ...]
) -> list[str]:
    function = getattr(owner, name, None)
    if not callable(function):
        return [f"{label} is missing"]
    there = inspect.signature(function).parameters
    return [f"{label} takes no {p!r}" for p in parameters if p not in there]
