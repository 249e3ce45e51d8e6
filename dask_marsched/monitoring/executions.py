"""Remembers the last executions of operands, and the last graphs."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: Most executions and graphs that are remembered, in a few megabytes.
_MOST_EXECUTIONS = 10_000
_MOST_GRAPHS = 100
#: Most keys of wanted results, except for those of the last graph.
_MOST_WANTED = 200_000

_LOADING = frozenset({"transfer", "disk-read", "deserialize"})


@dataclass(frozen=True, slots=True)
class Execution:
    """The phases of one execution on a worker, in seconds of the scheduler's clock."""

    worker: str
    sent: float
    waiting: float
    loading: float
    calculating: float
    storing: float


def execution(
    worker: str, sent: float, heard: float, startstops: Iterable[Mapping[str, Any]]
) -> Execution | None:
    """Return the phases of an execution, None if the worker did not measure it.

    `sent` and `heard` are when the scheduler sent it and was notified of its end; `startstops` are
    the worker's measurements, each with ``action``, ``start`` and ``stop``.
    """
    begun, ended, loading = heard, 0.0, 0.0
    loads: list[tuple[float, float]] = []
    for part in startstops:
        if part["action"] == "compute":
            begun, ended = part["start"], part["stop"]
        elif part["action"] in _LOADING:
            loads.append((part["start"], part["stop"]))
    if not ended:
        return None
    upto = sent
    for start, stop in sorted(loads):  # inputs may be loaded at the same time
        first = max(start, upto)
        if stop > first:
            loading += stop - first
            upto = stop
    # Clocks of two machines differ, so a phase could be negative.
    waiting = max(0.0, begun - sent - loading)
    return Execution(worker, sent, waiting, loading, ended - begun, max(0.0, heard - ended))


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph that was submitted; `operands` counts those that were new to the scheduler."""

    number: int
    client: str
    arrived: float
    operands: int
    wanted: Collection[Hashable]


class Executions:
    """Remembers the last executions and graphs; the oldest are dropped."""

    def __init__(self) -> None:
        self.graphs: deque[Graph] = deque()
        self._wanted = 0
        self._arrived = 0  # itertools.count cannot be pickled from Python 3.14 on
        self._sent: dict[Hashable, float] = {}
        self._done: OrderedDict[Hashable, tuple[str, float, float, Any]] = OrderedDict()

    def graph_arrived(
        self, client: str, now: float, operands: int, wanted: Collection[Hashable]
    ) -> None:
        """Remember a graph."""
        graphs = self.graphs
        graphs.append(Graph(self._arrived, client, now, operands, wanted))
        self._arrived += 1
        self._wanted += len(wanted)
        while len(graphs) > _MOST_GRAPHS or (len(graphs) > 1 and self._wanted > _MOST_WANTED):
            self._wanted -= len(graphs.popleft().wanted)

    def sent(self, key: Hashable, now: float) -> None:
        """Remember when an operand was sent to a worker."""
        self._sent[key] = now

    def left(self, key: Hashable) -> None:
        """Forget that an operand was sent, as its worker will not run it."""
        self._sent.pop(key, None)

    def finished(self, key: Hashable, worker: str, now: float, startstops: Any) -> None:
        """Remember an execution."""
        sent = self._sent.pop(key, None)
        if sent is not None:
            done = self._done
            done.pop(key, None)
            done[key] = (worker, sent, now, startstops)
            if len(done) > _MOST_EXECUTIONS:
                done.popitem(last=False)

    def of(self, key: Hashable) -> Execution | None:
        """Return the last execution of an operand, None if it is not remembered."""
        found = self._done.get(key)
        return None if found is None else execution(*found)

    def clear(self) -> None:
        """Forget everything."""
        self.graphs.clear()
        self._wanted = 0
        self._sent.clear()
        self._done.clear()
