"""Defines the faults that a simulation can inject.

A fault is a tuple ``(seconds, "kill", worker)``, with a duration after ``"pause"``, or a factor
after ``"slow"`` and ``"slow-link"``, or a text of the same: ``"kill:3@10s"``. The scheduler is
killed by ``(seconds, "kill", "scheduler")``, maybe with the seconds until it is back.

To add a kind, add it to `KINDS` and `ACCEPTED`, and its effect to ``cluster.py`` in this folder.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from dask_marsched.simulation.amounts import read_number, read_seconds

#: The kinds of faults, and what follows the worker in a tuple.
KINDS: Mapping[str, str | None] = {
    "kill": None,  #: The worker's process dies, with all results that it holds.
    "join": None,  #: A worker joins; a number that was there before comes back empty.
    "pause": "seconds",  #: The worker is paused, as for lack of memory: running tasks end.
    "slow": "factor",  #: The worker's tasks take so many times as long; 1 ends the fault.
    "slow-link": "factor",  #: Transfers of the worker's host take so many times as long.
}
#: The number of the scheduler, which is back after a while and goes on by its journal.
SCHEDULER = -1
_TEXT = re.compile(r"(?P<what>[^:@]+):(?P<worker>\d+|scheduler)@(?P<at>[^:@]+)(:(?P<more>[^:@]+))?")
ACCEPTED = (
    "(seconds, 'kill', worker), (seconds, 'kill', 'scheduler'), "
    "(seconds, 'kill', 'scheduler', seconds until it is back), (seconds, 'join', worker), "
    "(seconds, 'pause', worker, how many seconds), (seconds, 'slow', worker, factor) "
    "and (seconds, 'slow-link', worker, factor), or texts: kill:WORKER@TIME, "
    "kill:scheduler@TIME[:DURATION], join:WORKER@TIME, pause:WORKER@TIME:DURATION, "
    "slow:WORKER@TIME:FACTOR and slow-link:WORKER@TIME:FACTOR"
)


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault of the worker with a number, this many seconds after the submission of the graph."""

    at: float
    what: str
    worker: int  #: Or `SCHEDULER`.
    amount: float = 1.0  #: Seconds or factor, see `KINDS`.


def read_faults(faults: Iterable[Any]) -> tuple[Fault, ...]:
    """Return faults sorted by time; ValueError for bad ones."""
    return tuple(sorted(map(read_fault, faults), key=lambda fault: fault.at))


def read_fault(given: Any) -> Fault:
    """Return a fault from a tuple or a text; ValueError for a bad one."""
    if isinstance(given, Fault):
        return given
    values = tuple(given) if isinstance(given, tuple | list) else ()
    if isinstance(given, str) and (found := _TEXT.fullmatch(given)):
        worker = found["worker"]
        values = (found["at"], found["what"], int(worker) if worker.isdigit() else worker)
        values += () if found["more"] is None else (found["more"],)
    where = f"in the fault {given!r}"
    what = values[1] if len(values) > 2 else None
    if values[1:3] == ("kill", "scheduler") and len(values) < 5:
        at, back = values[0], values[3] if len(values) > 3 else 3.0
        at = read_seconds(f"{where} at", at, zero=True)
        return Fault(at, "kill", SCHEDULER, read_seconds(f"{where} seconds", back))
    if what not in tuple(KINDS) or len(values) != 3 + (KINDS[what] is not None):
        raise ValueError(f"wrong fault {given!r}; accepted are {ACCEPTED}")
    at, _, worker, *more = values
    if not isinstance(worker, int) or isinstance(worker, bool) or worker < 0:
        raise ValueError(f"{where} the worker must be a number of 0 or more")
    at = read_seconds(f"{where} at", at, zero=True)
    if what == "pause":
        return Fault(at, what, worker, read_seconds(f"{where} seconds", more[0]))
    return Fault(at, what, worker, *(read_number(f"{where} factor", value) for value in more))
