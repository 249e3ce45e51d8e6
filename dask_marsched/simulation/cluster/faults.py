"""Defines the faults that a simulation can inject.

A fault is an object such as ``Kill(worker=3, at=10.0)``, or a tuple: ``(seconds, "kill", worker)``,
with a duration in seconds after ``"pause"``, or a factor after ``"slow"`` and ``"slow-link"``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault of the worker with a number, this many seconds after the submission of the graph."""

    worker: int
    at: float


@dataclasses.dataclass(frozen=True)
class Kill(Fault):
    """The worker's process dies, with all results that it holds."""


@dataclasses.dataclass(frozen=True)
class Join(Fault):
    """A worker joins; a number that was there before comes back empty."""


@dataclasses.dataclass(frozen=True)
class Pause(Fault):
    """The worker is paused for some seconds, as for lack of memory: running tasks end."""

    seconds: float


@dataclasses.dataclass(frozen=True)
class SlowWorker(Fault):
    """The worker's tasks take ``factor`` times as long from then on; 1 ends the fault."""

    factor: float


@dataclasses.dataclass(frozen=True)
class SlowLink(Fault):
    """Transfers of the worker's host take ``factor`` times as long from then on; 1 ends it."""

    factor: float


#: Names of the faults in tuples: ``(at, name, worker)``, with seconds or factor as a fourth.
KINDS: Mapping[str, type[Fault]] = {
    "kill": Kill,
    "join": Join,
    "pause": Pause,
    "slow": SlowWorker,
    "slow-link": SlowLink,
}
NAMES: Mapping[type[Fault], str] = {kind: name for name, kind in KINDS.items()}
ACCEPTED = (
    "(seconds, 'kill', worker), (seconds, 'join', worker), "
    "(seconds, 'pause', worker, how many seconds), (seconds, 'slow', worker, factor) "
    "and (seconds, 'slow-link', worker, factor), or objects such as Kill(worker, at)"
)


def read_faults(faults: Iterable[Fault | tuple[Any, ...]]) -> tuple[Fault, ...]:
    """Return faults, objects or tuples, as objects sorted by time; ValueError for bad ones."""
    return tuple(sorted((_read(fault) for fault in faults), key=lambda fault: fault.at))


def _read(given: Fault | tuple[Any, ...]) -> Fault:
    fault = given
    if isinstance(given, (tuple, list)) and len(given) >= 3:
        at, what, worker, *more = given
        make = KINDS.get(what) if isinstance(what, str) else None
        if make is None:
            raise ValueError(f"unknown fault {what!r}; accepted are {ACCEPTED}")
        try:
            fault = make(worker, at, *more)
        except TypeError:
            raise ValueError(f"wrong fault {given!r}; accepted are {ACCEPTED}") from None
    if not isinstance(fault, Fault) or type(fault) is Fault:
        raise ValueError(f"wrong fault {given!r}; accepted are {ACCEPTED}")
    if not _is_number(fault.worker, int) or fault.worker < 0:
        raise ValueError(f"in the fault {given!r} the worker must be a number of 0 or more")
    for name in ("at", "seconds", "factor"):
        value = getattr(fault, name, 1.0)
        least = "0 or more" if name == "at" else "more than 0"
        if not _is_number(value, int | float) or value < 0 or (name != "at" and not value):
            raise ValueError(f"in the fault {given!r} {name} must be {least}, not {value!r}")
    return fault


def _is_number(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)
