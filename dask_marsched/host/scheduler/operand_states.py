"""Derives operand states from a scheduler's tasks and from its transition log, without changes."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from dask.typing import Key
from distributed.scheduler import TaskState

from dask_marsched.core.operand import State, StateChange, history, state_of
from dask_marsched.host.scheduler.worker_queries import NOTHING, OperandDetails

#: Tasks examined between two turns of the event loop: a few milliseconds.
_AT_ONCE = 10_000
#: Turns for one page of operands.
_TURNS = 5
#: A key of dask.array and the like as text: a name and numbers.
_NAME_AND_NUMBERS = re.compile(
    r"\('([^'\\]+)',((?: -?[0-9]{1,18},)*(?: -?[0-9]{1,18})?)\)", re.ASCII
)


def operand_state(ts: TaskState, known: OperandDetails = NOTHING) -> State:
    """Return the state of a task's operand; ``known`` are the answers from `ask_workers`.

    Whether a sent task has begun is as of its worker's last heartbeat, about a second old at most.
    """
    ws = ts.processing_on
    begun = ws is not None and (ts in ws.executing or ts in ws.long_running)
    running = begun and ts.key not in known.retrying
    kept = ts.key in known.kept
    return state_of(ts.state, computed=ts.nbytes >= 0, running=running, kept=kept)


def operand_history(scheduler: Any, key: Key) -> list[StateChange]:
    """Return the states that an operand went through, as far as the scheduler's log goes back.

    It holds 1,000 transitions by default (``distributed.admin.low-level-log-length``).
    """
    return history(
        (entry.start, entry.finish, entry.stimulus_id, entry.timestamp)
        for entry in scheduler.transition_log
        if entry.key == key
    )


async def operands_of(scheduler: Any, wanted: Iterable[Key]) -> list[TaskState]:
    """Return the wanted tasks and all that they depend on, yielding to the event loop."""
    known = scheduler.tasks
    stack = [known[key] for key in wanted if key in known]
    seen = dict.fromkeys(stack)
    turn = _AT_ONCE
    while stack:
        for dts in stack.pop().dependencies:
            if dts not in seen:
                seen[dts] = None
                stack.append(dts)
        if len(seen) > turn:
            turn = len(seen) + _AT_ONCE
            await asyncio.sleep(0)
    return list(seen)


async def count_operands(
    tasks: list[TaskState], state: State | None, most: int, known: OperandDetails = NOTHING
) -> tuple[Counter[State], list[tuple[TaskState, State]]]:
    """Count operands by state; return the first ``most`` that are in a state, or in any.

    It yields to the event loop, so that states may be some milliseconds apart.
    """
    counts: Counter[State] = Counter()
    rows: list[tuple[TaskState, State]] = []
    for first in range(0, len(tasks), _AT_ONCE):
        for ts in tasks[first : first + _AT_ONCE]:
            own = operand_state(ts, known)
            counts[own] += 1
            if len(rows) < most and state in (None, own):
                rows.append((ts, own))
        await asyncio.sleep(0)
    return counts, rows


def find_operand(scheduler: Any, text: str) -> TaskState | None:
    """Return the task whose key, a string or a tuple of a name and numbers, has this text."""
    found: TaskState | None = scheduler.tasks.get(text)
    if found is None and (match := _NAME_AND_NUMBERS.fullmatch(text)):
        numbers = (int(number) for number in match[2].split(",") if number)
        found = scheduler.tasks.get((match[1], *numbers))
    return found if found is not None and str(found.key) == text else None


async def page_of_operands(
    tasks: Mapping[Key, TaskState] | Sequence[TaskState],
    offset: int,
    most: int,
    accepts: Callable[[TaskState, State], bool],
) -> tuple[list[tuple[TaskState, State]], int | None]:
    """Return up to ``most`` operands, and the offset of the next ones (None if there are none).

    A call examines a bounded number of tasks after the first ``offset``, and yields to the event
    loop. ``accepts`` selects operands by task and state.
    """
    found: list[tuple[TaskState, State]] = []
    for _ in range(_TURNS):
        values = tasks.values() if isinstance(tasks, Mapping) else tasks
        # A copy: the scheduler's tasks change during the turns of the event loop.
        for ts in list(islice(values, offset, offset + _AT_ONCE)):
            offset += 1
            own = operand_state(ts)
            if accepts(ts, own):
                found.append((ts, own))
                if len(found) == most:
                    return found, offset if offset < len(tasks) else None
        if offset >= len(tasks):
            return found, None
        await asyncio.sleep(0)
    return found, offset
