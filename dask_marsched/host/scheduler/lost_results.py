"""Derives the consequences of a worker's loss from the scheduler's transitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dask.typing import Key
from distributed.scheduler import TaskState

from dask_marsched.host.scheduler.snapshot import topological

#: Topic of the events on lost workers and second runs, for ``client.get_events`` and
#: ``client.subscribe_topic``.
TOPIC = "marsched-failover"

_PENDING = frozenset({"waiting", "no-worker", "queued", "processing"})


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of a worker."""

    lost: list[Key]  #: Keys of results that no other worker holds.
    #: Keys of operands sent again, because their worker or one of their inputs was lost.
    interrupted: list[Key]
    again: list[Key]  #: Keys of operands that had a result and are recomputed.
    pending: list[Key]  #: Keys among ``interrupted`` and ``again`` that still have no result.
    needed: int  #: How many operands it would have sufficed to recompute.
    spared: int  #: Lost results that are not needed.
    #: For each recomputed operand a reader that has to run; None if a client wants it.
    because: dict[Key, Key | None]


def read_loss(scheduler: Any, moves: Iterable[tuple[Key, str, str]]) -> Loss:
    """Return a removal's loss, from its transitions (``moves``: key, start and finish of each)."""
    lost: dict[Key, None] = {}
    interrupted: dict[Key, None] = {}
    again: dict[Key, None] = {}
    tasks = scheduler.tasks
    for key, start, finish in moves:
        if start == "memory":
            lost[key] = None
        elif start == "processing":
            interrupted[key] = None
        elif start == "released" and finish == "waiting":
            ts = tasks.get(key)
            if ts is not None and ts.nbytes >= 0 and ts.state in _PENDING:
                again[key] = None
    touched = [tasks[key] for key in {**lost, **again} if key in tasks]
    because = {key: _reader(tasks[key]) for key in again}
    pending = [
        key for key in {**interrupted, **again} if key in tasks and tasks[key].state in _PENDING
    ]
    needed = smallest_recovery(touched)
    spared = sum(ts.key in lost and ts not in needed for ts in touched)
    return Loss(list(lost), list(interrupted), list(again), pending, len(needed), spared, because)


def _reader(ts: TaskState) -> Key | None:
    readers = (dts.key for dts in ts.dependents if dts.state in _PENDING)
    return None if ts.who_wants else next(readers, None)


def smallest_recovery(gone: list[TaskState]) -> set[TaskState]:
    """Return the tasks without a result to run again: those wanted, or read by what has to run."""
    among = set(gone)
    needed = set[TaskState]()
    for ts in reversed(topological(gone)):
        if ts.who_wants or any(
            dts in needed if dts in among else dts.state in _PENDING for dts in ts.dependents
        ):
            needed.add(ts)
    return needed
