"""The last executions, with the times of their phases, and the graphs that they belong to."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: Executions and graphs that are remembered. Together they take a few megabytes at most.
_MOST_EXECUTIONS = 10_000
_MOST_GRAPHS = 100
#: Of the graphs but the last: keys outlive what they are names of.
_MOST_WANTED = 200_000

_LOADING = frozenset({"transfer", "disk-read", "deserialize"})


@dataclass(frozen=True, slots=True)
class Execution:
    """An execution of an operand on a worker, in its four phases.

    Attributes
    ----------
    worker
        The worker's address.
    sent
        When the scheduler sent it there, in seconds of the scheduler's clock.
    waiting
        Seconds from then until it began, without those of `loading`: for a thread and for memory.
    loading
        Seconds in which its inputs were fetched and read from disk.
    calculating
        Seconds in which it ran.
    storing
        Seconds from then until the scheduler heard of the result.
    """

    worker: str
    sent: float
    waiting: float
    loading: float
    calculating: float
    storing: float


def execution(
    worker: str, sent: float, heard: float, startstops: Iterable[Mapping[str, Any]]
) -> Execution | None:
    """Return the phases of an execution, None if there is no telling when it ran.

    Parameters
    ----------
    worker
        The worker's address.
    sent, heard
        When the scheduler sent it, and when it heard of the end, seconds.
    startstops
        What the worker measured: ``action``, ``start`` and ``stop`` of each.
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
    for start, stop in sorted(loads):  # several inputs come at the same time
        first = max(start, upto)
        if stop > first:
            loading += stop - first
            upto = stop
    # Clocks of two machines differ: no phase is shorter than nothing.
    waiting = max(0.0, begun - sent - loading)
    return Execution(worker, sent, waiting, loading, ended - begun, max(0.0, heard - ended))


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph that was submitted.

    Attributes
    ----------
    number
        From 0, in the order in which they came.
    client
        Who submitted it.
    arrived
        When, in seconds of the scheduler's clock.
    operands
        How many operands came with it that the scheduler had not known.
    wanted
        The keys of the results that the client wants.
    """

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
        """Take note that a worker will not run an operand after all."""
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
