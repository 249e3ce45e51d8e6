"""Puts tasks into the states that returning workers report, and starts those that nobody runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

from dask.typing import Key

logger = logging.getLogger("dask_marsched")

STIMULUS = "marsched-restored"


class Held(NamedTuple):
    """A result on a worker: a pickled type and its name.

    The run is the one that made it; of a copy from another worker, the last one that this worker
    had been told of.
    """

    address: str
    run_id: int
    nbytes: int
    type: bytes
    typename: str


class Run(NamedTuple):
    """A task that a worker runs."""

    address: str
    run_id: int
    seceded: bool


def released_memory(scheduler: Any, key: Key, stimulus_id: str, *, found: Held) -> Any:
    """Move a task from "released" to "memory": an entry of the transition table."""
    ts, ws = scheduler.tasks[key], scheduler.workers[found.address]
    ts.set_nbytes(found.nbytes)
    scheduler.add_replica(ts, ws)
    ts.state = "memory"
    ts.type = found.typename
    ts.group.add_type(found.typename)
    if ts.actor:
        ws.actors.add(ts)
    message = {"op": "key-in-memory", "key": key, "type": found.type}
    return {}, {cs.client_key: [message] for cs in ts.who_wants or ()}, {}


def released_processing(scheduler: Any, key: Key, stimulus_id: str, *, run: Run) -> Any:
    """Move a task from "released" to "processing": an entry of the transition table.

    The worker runs it already, possibly with inputs that nobody else needs and that are gone.
    """
    ts, ws = scheduler.tasks[key], scheduler.workers[run.address]
    for dts in ts.dependencies:
        if dts.state == "memory":
            dts.waiters = dts.waiters or set()
            dts.waiters.add(ts)
    ts.waiters = {dts for dts in ts.dependents if dts.state == "waiting"}
    validate, scheduler.validate = scheduler.validate, False
    try:
        recommendations, to_clients, _ = scheduler._add_to_processing(
            ts, ws, stimulus_id=stimulus_id
        )
    finally:
        scheduler.validate = validate
    ts.run_id = run.run_id
    return recommendations, to_clients, {}


def stay(scheduler: Any, key: Key, stimulus_id: str) -> Any:
    """Leave a task in its state: an entry of the transition table."""
    return {}, {}, {}


def start_all(scheduler: Any, wanted: Iterable[Key]) -> None:
    """Let the wanted tasks run whose results nobody holds; drop those that are lost for good."""
    lost = {
        ts.key: "forgotten"
        for ts in list(scheduler.tasks.values())
        if ts.state == "released" and ts.run_spec is None
    }
    if lost:
        logger.error(
            "Data that no worker holds any more cannot be computed again: %s", list(lost)[:10]
        )
        scheduler.transitions(lost, STIMULUS)
    tasks = [scheduler.tasks[key] for key in wanted if key in scheduler.tasks]
    idle = [ts for ts in tasks if ts.state == "released" and ts.run_spec and ts.priority]
    idle.sort(key=lambda ts: ts.priority, reverse=True)
    scheduler.transitions({ts.key: "waiting" for ts in idle}, STIMULUS)
    # Results that came back and that nobody needs any more.
    unneeded = {
        ts.key: "released"
        for ts in list(scheduler.tasks.values())
        if ts.state == "memory" and not ts.waiters and not ts.who_wants
    }
    scheduler.transitions(unneeded, STIMULUS)
    scheduler.stimulus_queue_slots_maybe_opened(stimulus_id=STIMULUS)
