"""What a scheduler did when it lost a worker, read from its log of transitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dask.typing import Key
from distributed.scheduler import TaskState

from dask_marsched.core.graph import Edges
from dask_marsched.host.snapshot import topological
from dask_marsched.policies.failover import Lineage, Recovery, scan

_PENDING = frozenset({"waiting", "no-worker", "queued", "processing"})


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of a worker.

    Attributes
    ----------
    lost
        Keys of results that were on no other worker.
    interrupted
        Keys of operands that had been sent to a worker and are to be sent again: to the lost
        one, or to another with an input that is lost.
    again
        Keys of operands with a result before that are computed again.
    recovery
        What would have sufficed, by `dask_marsched.policies.failover.scan`.
    because
        For operands that are computed again one that reads it and has to run, None if a client
        wants the result.
    """

    lost: list[Key]
    interrupted: list[Key]
    again: list[Key]
    recovery: Recovery
    because: dict[Key, Key | None]


def read_loss(scheduler: Any, stimulus_id: str) -> Loss:
    """Return what the removal of a worker did to the tasks.

    To be called in `SchedulerPlugin.remove_worker`: the transitions are the last in the log
    then. All of it is public; nothing is changed.

    Parameters
    ----------
    scheduler
        A `distributed.Scheduler`.
    stimulus_id
        Of the removal.
    """
    entries = []
    for entry in reversed(scheduler.transition_log):
        if entry.stimulus_id == stimulus_id:
            entries.append(entry)
        elif entries:
            break  # other plugins may have caused transitions since
    lost: dict[Key, None] = {}
    interrupted: dict[Key, None] = {}
    again: dict[Key, None] = {}
    tasks = scheduler.tasks
    for entry in reversed(entries):
        if entry.start == "memory":
            lost[entry.key] = None
        elif entry.start == "processing":
            interrupted[entry.key] = None
        elif entry.start == "released" and entry.finish == "waiting":
            ts = tasks.get(entry.key)
            if ts is not None and ts.nbytes >= 0 and ts.state in _PENDING:
                again[entry.key] = None
    own = [tasks[key] for key in {**lost, **again} if key in tasks]
    because = {key: _reader(tasks[key]) for key in again}
    return Loss(list(lost), list(interrupted), list(again), _least(own, lost), because)


def _reader(ts: TaskState) -> Key | None:
    readers = (dts.key for dts in ts.dependents if dts.state in _PENDING)
    return None if ts.who_wants else next(readers, None)


def _least(tasks: list[TaskState], lost: dict[Key, None]) -> Recovery:
    """Scan the part of the graph that the loss has touched."""
    tasks = topological(tasks)
    number = {ts: i for i, ts in enumerate(tasks)}
    inputs = Edges.of(
        sorted(number[dts] for dts in ts.dependencies if dts in number) for ts in tasks
    )
    wanted = bytes(
        bool(ts.who_wants)
        or any(dts.state in _PENDING and dts not in number for dts in ts.dependents)
        for ts in tasks
    )
    n = len(tasks)
    of_loss = [i for i, ts in enumerate(tasks) if ts.key in lost]
    return scan(Lineage(inputs, b"\1" * n, bytes(n), wanted), inputs.reversed(), of_loss)
