"""Operand states, and the one table of the transitions between them.

The states are those of Mars. `dask_marsched.host.scheduler.operand_states` derives them from Dask's
task states; they are not stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType


class State(Enum):
    """What an operand is doing.

    Attributes
    ----------
    UNSCHEDULED
        It waits for inputs.
    READY
        All inputs are there; it waits for a worker, or was sent to one and has not begun.
    RUNNING
        A worker runs it.
    FINISHED
        Its result is in the memory of a worker.
    CACHED
        Its result is kept where a worker's death does not reach it, or on disk.
    FREED
        Its result was released after use, or is lost and not needed.
    FATAL
        It failed for good, or one that it reads did.
    CANCELLING
        It runs, was cancelled, and is being interrupted.
    CANCELLED
        It was given up before it had a result.
    """

    UNSCHEDULED = "unscheduled"
    READY = "ready"
    RUNNING = "running"
    FINISHED = "finished"
    CACHED = "cached"
    FREED = "freed"
    FATAL = "fatal"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


_S = State

#: From each state to each other one: when that happens. What is not here is illegal.
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
    """An operand cannot go from the one state to the other."""


def check(start: State, finish: State) -> None:
    """Raise unless an operand may go from one state to the other.

    Raises
    ------
    IllegalTransitionError
        It may not; the message names what it may become.
    """
    allowed = TRANSITIONS[start]
    if finish not in allowed:
        names = ", ".join(state.name for state in allowed)
        raise IllegalTransitionError(
            f"an operand that is {start.name} cannot become {finish.name}, only {names}"
        )


#: The states of a task on a Dask scheduler.
DASK_STATES = (
    "released",
    "waiting",
    "no-worker",
    "queued",
    "processing",
    "memory",
    "erred",
    "forgotten",
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


def state_of(
    dask_state: str, *, computed: bool, running: bool = False, kept: bool = False
) -> State:
    """Return the state of an operand whose task is in a state of Dask's.

    Parameters
    ----------
    dask_state
        One of `DASK_STATES`.
    computed
        Whether it has had a result.
    running
        Whether its worker is known to run it; matters for ``"processing"`` only.
    kept
        Whether its result is on disk, or where it outlives its worker's process; matters for
        ``"memory"`` only.

    Raises
    ------
    ValueError
        Dask has no such state.
    """
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
    """A change of an operand's state.

    Attributes
    ----------
    state
        The state that it came to.
    time
        When, in seconds as the scheduler's clock tells it.
    dask
        The states of its task on the scheduler, before and after.
    stimulus
        Dask's name of what caused it.
    """

    state: State
    time: float
    dask: tuple[str, str]
    stimulus: str


def history(log: Iterable[tuple[str, str, str, float]]) -> list[StateChange]:
    """Return the states that an operand went through.

    Parameters
    ----------
    log
        Its task's transitions in Dask, in their order: state before, state after, stimulus and
        time. The first ones may be missing.

    Raises
    ------
    IllegalTransitionError
        Dask's transitions do not add up to ones of `TRANSITIONS`.
    """
    steps: list[StateChange] = []
    computed = False
    before: State | None = None
    for start, finish, stimulus, time in log:
        computed = computed or start == "memory"
        if start == finish:
            continue
        came = state_of(start, computed=computed)
        # A task that ends was run. Only its worker knows when that began.
        through = [State.RUNNING] if _was_run(start, finish, stimulus) else []
        computed = computed or finish == "memory"
        for state in (came, *through, state_of(finish, computed=computed)):
            if state is before:
                continue
            if before is not None:
                check(before, state)
            steps.append(StateChange(state, time, (start, finish), stimulus))
            before = state
        # The scheduler knows nothing any more of what it has forgotten: the next is a new task.
        computed = computed and finish != "forgotten"
    return steps


def _was_run(start: str, finish: str, stimulus: str) -> bool:
    return start == "processing" and (
        finish == "memory" or (finish == "erred" and stimulus.startswith("task-erred"))
    )


def table() -> str:
    """Return the transitions as a table in Markdown, for the documentation."""
    rows = ["| from | to | when |", "|---|---|---|"]
    rows += [
        f"| {start.name} | {finish.name} | {why} |"
        for start, targets in TRANSITIONS.items()
        for finish, why in targets.items()
    ]
    return "\n".join(rows)
