"""Operand states: the table, and the translation of Dask's transitions into it."""

from pathlib import Path

import pytest

from dask_marsched.core.operand import (
    DASK_STATES,
    TRANSITIONS,
    IllegalTransitionError,
    State,
    check,
    history,
    state_of,
)

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "operand-states.md"


def states(*log):
    return [step.state.name for step in history((a, b, s, i) for i, (a, b, s) in enumerate(log))]


def test_every_state_is_in_the_table_and_can_be_reached():
    assert set(TRANSITIONS) == set(State)
    assert {s for targets in TRANSITIONS.values() for s in targets} == set(State)


def test_the_table_in_the_documentation_is_this_one():
    rows = ["| from | to | when |", "|---|---|---|"]
    rows += [
        f"| {start.name} | {finish.name} | {why} |"
        for start, targets in TRANSITIONS.items()
        for finish, why in targets.items()
    ]
    assert "\n".join(rows) in DOCS.read_text(encoding="utf-8")


def test_an_illegal_transition_names_the_legal_ones():
    with pytest.raises(IllegalTransitionError, match=r"FREED cannot become RUNNING.*UNSCHEDULED"):
        check(State.FREED, State.RUNNING)


@pytest.mark.parametrize(
    ("dask", "computed", "running", "expected"),
    [
        ("released", False, False, State.UNSCHEDULED),
        ("released", True, False, State.FREED),
        ("waiting", True, False, State.UNSCHEDULED),
        ("queued", False, False, State.READY),
        ("no-worker", False, False, State.READY),
        ("processing", False, False, State.READY),
        ("processing", False, True, State.RUNNING),
        ("memory", True, False, State.FINISHED),
        ("erred", False, False, State.FATAL),
        ("forgotten", True, False, State.FREED),
        ("forgotten", False, False, State.CANCELLED),
    ],
)
def test_state_of(dask, computed, running, expected):
    assert state_of(dask, computed=computed, running=running) is expected


def test_a_state_that_dask_does_not_have():
    with pytest.raises(ValueError, match=r"no task state 'done'.*waiting"):
        state_of("done", computed=False)


RUN = [
    ("released", "waiting", "update-graph-1"),
    ("waiting", "processing", "update-graph-1"),
]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (
            [*RUN, ("processing", "memory", "task-finished-2"), ("memory", "released", "x")],
            ["UNSCHEDULED", "READY", "RUNNING", "FINISHED", "FREED"],
        ),
        (
            [*RUN, ("processing", "erred", "task-erred-2")],
            ["UNSCHEDULED", "READY", "RUNNING", "FATAL"],
        ),
        ([*RUN, ("processing", "erred", "cleanup-2")], ["UNSCHEDULED", "READY", "FATAL"]),
        (
            [*RUN, ("processing", "memory", "f"), ("memory", "released", "x"), *RUN],
            ["UNSCHEDULED", "READY", "RUNNING", "FINISHED", "FREED", "UNSCHEDULED", "READY"],
        ),
        (
            [RUN[0], ("waiting", "released", "c"), ("released", "forgotten", "c"), *RUN],
            ["UNSCHEDULED", "CANCELLED", "UNSCHEDULED", "READY"],
        ),
        # The log begins in the middle.
        ([("processing", "memory", "f")], ["READY", "RUNNING", "FINISHED"]),
    ],
)  # fmt: skip
def test_history(log, expected):
    assert states(*log) == expected


def test_a_history_that_does_not_add_up():
    with pytest.raises(IllegalTransitionError):
        states(*RUN, ("memory", "released", "x"))


def test_dask_states_are_those_of_distributed():
    from typing import get_args

    from distributed.scheduler import TaskStateState

    assert set(DASK_STATES) == set(get_args(TaskStateState))
