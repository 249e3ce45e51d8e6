"""What a scheduler did when it lost a worker, by the transitions that came with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dask.typing import Key
from distributed.scheduler import TaskState

from dask_marsched.core.graph import Edges
from dask_marsched.host.scheduler.snapshot import topological
from dask_marsched.policies.recomputation import Lineage, Recovery, scan

_PENDING = frozenset({"waiting", "no-worker", "queued", "processing"})
#: States from which a transition tells something of a loss.
_TOLD = frozenset({"memory", "processing", "released"})


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
    pending
        Which of both have no result yet: there may have been time enough for it.
    recovery
        What would have sufficed, by `dask_marsched.policies.recomputation.scan`.
    because
        For operands that are computed again one that reads it and has to run, None if a client
        wants the result.
    """

    lost: list[Key]
    interrupted: list[Key]
    again: list[Key]
    pending: list[Key]
    recovery: Recovery
    because: dict[Key, Key | None]


class LastTransitions:
    """The transitions of the last stimulus, all of them: Dask's log is of bounded length."""

    def __init__(self) -> None:
        self._stimulus = ""
        self._moves: list[tuple[Key, str, str]] = []

    def note(self, key: Key, start: str, finish: str, stimulus_id: str) -> None:
        """Take note of a transition."""
        if stimulus_id != self._stimulus:
            self._stimulus = stimulus_id
            self._moves = []
        if start in _TOLD and not stimulus_id.startswith("update-graph"):
            self._moves.append((key, start, finish))

    def of(self, stimulus_id: str) -> list[tuple[Key, str, str]]:
        """Return key, state before and state after of those of a stimulus, if it was the last."""
        return self._moves if stimulus_id == self._stimulus else []


def read_loss(scheduler: Any, moves: Iterable[tuple[Key, str, str]]) -> Loss:
    """Return what the removal of a worker did to the tasks.

    Parameters
    ----------
    scheduler
        A `distributed.Scheduler`, read only.
    moves
        The transitions that came with it: key, state before and state after.
    """
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
    own = [tasks[key] for key in {**lost, **again} if key in tasks]
    because = {key: _reader(tasks[key]) for key in again}
    pending = [
        key for key in {**interrupted, **again} if key in tasks and tasks[key].state in _PENDING
    ]
    return Loss(list(lost), list(interrupted), list(again), pending, _least(own, lost), because)


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
