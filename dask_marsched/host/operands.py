"""Operand states read from a scheduler's tasks and from its log of transitions.

Reads public attributes only, keeps nothing and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

from dask.typing import Key
from distributed.scheduler import TaskState

from dask_marsched.core.operand import State, Step, history, state_of

#: Tasks looked at in one go: a few milliseconds, so that the scheduler stays responsive.
_AT_ONCE = 10_000


def operand_state(ts: TaskState) -> State:
    """Return the state of a task's operand.

    Whether a task that was sent has begun is known from its worker's last heartbeat, at most a
    second or so old.

    Parameters
    ----------
    ts
        The task.
    """
    ws = ts.processing_on
    running = ws is not None and (ts in ws.executing or ts in ws.long_running)
    return state_of(ts.state, computed=ts.nbytes >= 0, running=running)


def operand_history(scheduler: Any, key: Key) -> list[Step]:
    """Return what an operand went through, as far back as the scheduler's log goes.

    The log holds the last 100,000 transitions of all tasks
    (``distributed.admin.low-level-log-length``).

    Parameters
    ----------
    scheduler
        A `distributed.Scheduler`.
    key
        The operand's key.
    """
    return history(
        (entry.start, entry.finish, entry.stimulus_id, entry.timestamp)
        for entry in scheduler.transition_log
        if entry.key == key
    )


def operands_of(scheduler: Any, wanted: Iterable[Key]) -> list[TaskState]:
    """Return the tasks of a graph: those that somebody wants, and all that they rely on."""
    known = scheduler.tasks
    stack = [known[key] for key in wanted if key in known]
    seen = dict.fromkeys(stack)
    while stack:
        for dts in stack.pop().dependencies:
            if dts not in seen:
                seen[dts] = None
                stack.append(dts)
    return list(seen)


async def count_operands(
    tasks: list[TaskState], state: State | None, most: int
) -> tuple[Counter[State], list[tuple[TaskState, State]]]:
    """Count operands by state, and return the first ones in one of them, or in any.

    The event loop gets its turns in between, so that counts of a running graph may be of states
    some milliseconds apart.
    """
    counts: Counter[State] = Counter()
    rows: list[tuple[TaskState, State]] = []
    for first in range(0, len(tasks), _AT_ONCE):
        for ts in tasks[first : first + _AT_ONCE]:
            own = operand_state(ts)
            counts[own] += 1
            if len(rows) < most and state in (None, own):
                rows.append((ts, own))
        await asyncio.sleep(0)
    return counts, rows
