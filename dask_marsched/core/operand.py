"""Defines the states of operands, which are those of Mars, and the legal transitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType


class State(Enum):
    """State of an operand."""

    UNSCHEDULED = "unscheduled"  #: It waits for inputs.
    READY = "ready"  #: All inputs are in memory. It waits for a worker or a thread.
    RUNNING = "running"  #: A worker runs it.
    FINISHED = "finished"  #: Its result is in a worker's memory.
    CACHED = "cached"  #: Its result is on disk, or in memory that outlives its worker.
    FREED = "freed"  #: Its result was released after use, or was lost and is not needed.
    FATAL = "fatal"  #: It failed for good, or an operand that it reads did.
    CANCELLING = "cancelling"  #: It was cancelled while running and is being interrupted.
    CANCELLED = "cancelled"  #: It was cancelled before it had a result.


_S = State

#: The legal transitions, and when each happens.
TRANSITIONS: Mapping[State, Mapping[State, str]] = MappingProxyType(
    {
        _S.UNSCHEDULED: {
            _S.READY: "its last input is there",
            _S.FINISHED: "its result was put there from outside",
            _S.FREED: "computed before, and not needed again after all",
            _S.FATAL: "an operand that it reads failed",
            _S.CANCELLED: "nobody wants it any more",
        },
        _S.READY: {
            _S.RUNNING: "a worker begins with it",
            _S.UNSCHEDULED: "an input, or its worker, was lost",
            _S.FREED: "computed before, and not needed again after all",
            _S.FATAL: "no worker may run it, or it killed those that did",
            _S.CANCELLED: "nobody wants it any more",
        },
        _S.RUNNING: {
            _S.FINISHED: "its result is stored",
            _S.READY: "it is to run again: it failed and has retries left, or asked for it",
            _S.UNSCHEDULED: "an input, or its worker, was lost",
            _S.FREED: "computed before, and not needed again after all",
            _S.FATAL: "it failed for good",
            _S.CANCELLING: "it was cancelled",
            _S.CANCELLED: "nobody wants it any more, and nothing interrupts it",
        },
        _S.FINISHED: {
            _S.CACHED: "its result went to disk or to shared memory",
            _S.FREED: "its result was released or lost",
            _S.FATAL: "it was an actor, and its worker died",
        },
        _S.CACHED: {
            _S.FINISHED: "its result was read back",
            _S.FREED: "its result was released or lost",
        },
        _S.FREED: {
            _S.UNSCHEDULED: "its result is needed again",
            _S.FATAL: "an operand that it reads failed when it was needed again",
        },
        _S.FATAL: {
            _S.UNSCHEDULED: "it is tried again, or given up",
            _S.FREED: "computed before it failed, and given up",
        },
        _S.CANCELLING: {
            _S.CANCELLED: "it has been interrupted",
            _S.UNSCHEDULED: "it was submitted again meanwhile",
        },
        _S.CANCELLED: {
            _S.UNSCHEDULED: "it was submitted again",
        },
    }
)


class IllegalTransitionError(ValueError):
    """Raised for a transition that is not in `TRANSITIONS`."""


def check(start: State, finish: State) -> None:
    """Raise `IllegalTransitionError` unless `TRANSITIONS` has this transition."""
    allowed = TRANSITIONS[start]
    if finish not in allowed:
        names = ", ".join(state.name for state in allowed)
        raise IllegalTransitionError(
            f"an operand that is {start.name} cannot become {finish.name}, only {names}"
        )


_SIMPLE: Mapping[str, State] = MappingProxyType(
    {
        "waiting": State.UNSCHEDULED,
        "no-worker": State.READY,
        "queued": State.READY,
        "memory": State.FINISHED,
        "erred": State.FATAL,
    }
)
#: The states of a task on a Dask scheduler.
DASK_STATES = (*_SIMPLE, "processing", "released", "forgotten")


def state_of(
    dask_state: str, *, computed: bool, running: bool = False, kept: bool = False
) -> State:
    """Translate one of `DASK_STATES`, else ValueError; `kept`: on disk, or safe from its worker."""
    state = _SIMPLE.get(dask_state)
    if kept and state is State.FINISHED:
        return State.CACHED
    if state is not None:
        return state
    if dask_state == "processing":
        return State.RUNNING if running else State.READY
    if dask_state == "released":
        return State.FREED if computed else State.UNSCHEDULED
    if dask_state == "forgotten":
        return State.FREED if computed else State.CANCELLED
    raise ValueError(f"Dask has no task state {dask_state!r}; it has {', '.join(DASK_STATES)}")


@dataclass(frozen=True, slots=True)
class StateChange:
    """A change of an operand's state."""

    state: State  #: The new state.
    time: float  #: Scheduler time in seconds.
    dask: tuple[str, str]  #: The states of its task on the scheduler, before and after.
    stimulus: str  #: Dask's stimulus id.


def history(log: Iterable[tuple[str, str, str, float]]) -> list[StateChange]:
    """Return the states of an operand; IllegalTransitionError if `TRANSITIONS` lacks a change.

    `log` has its task's states before and after, stimulus, and time in seconds, in order. The
    earliest transitions may be missing.
    """
    steps: list[StateChange] = []
    computed = False
    before: State | None = None
    for start, finish, stimulus, time in log:
        computed = computed or start == "memory"
        if start == finish:
            continue
        came = state_of(start, computed=computed)
        # The log does not say when a finished task began to run: only its worker knows.
        through = [State.RUNNING] if _was_run(start, finish, stimulus) else []
        computed = computed or finish == "memory"
        for state in (came, *through, state_of(finish, computed=computed)):
            if state is before:
                continue
            if before is not None:
                check(before, state)
            steps.append(StateChange(state, time, (start, finish), stimulus))
            before = state
        # After "forgotten" the key belongs to a new task.
        computed = computed and finish != "forgotten"
    return steps


def _was_run(start: str, finish: str, stimulus: str) -> bool:
    return start == "processing" and (
        finish == "memory" or (finish == "erred" and stimulus.startswith("task-erred"))
    )
