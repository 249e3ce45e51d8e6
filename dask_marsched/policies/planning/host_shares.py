"""Assigns units to hosts in shares (runs of successive units) if several workers share a host.

Transfers within a host are nearly free, and successive units tend to meet later. A host opens the
units of its own share in order, then takes a share that no host has, then units from the end of the
fullest share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
from sortedcontainers import SortedKeyList

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.plan import Unit, WorkerSlot

RUNS = (1, 2, 4, 8, 16)  #: Numbers of shares for each host to try.
_TOLERANCE = 1.25  #: Tolerance on the peak of stock Dask or of a single front, both estimates.


def several_to_a_host(workers: Iterable[WorkerSlot]) -> bool:
    """Whether there are several hosts, and several workers on one of them."""
    hosts = [w.host for w in workers]
    return 1 < len(set(hosts)) < len(hosts)


def runs_to_a_host(
    graph: OperandGraph, units: Sequence[Unit], hosts: int, stock_peak: float
) -> int:
    """Return the least shares for each host that hold hardly more than stock Dask or one front.

    A front is the set of results that a run of units holds at a time (`Fronts`).
    """
    fronts = Fronts(graph, units)
    most = _TOLERANCE * max(stock_peak, fronts.peak(1, 1))
    return next((m for m in RUNS if fronts.peak(m * hosts, hosts) <= most), RUNS[-1])


def cut_into_shares(
    units: Sequence[Unit], workers: Sequence[WorkerSlot], runs: int = 1
) -> list[Unit]:
    """Assign units to `runs` shares for each host, by threads, in the order hosts joined."""
    threads: dict[str, int] = {}
    for w in workers:
        threads[w.host] = threads.get(w.host, 0) + w.nthreads
    operands = sum(len(unit.operands) for unit in units)
    ends = list(accumulate([*threads.values()] * runs))
    total = ends[-1]
    shares, share, before = [], 0, 0
    for unit in units:
        middle = (before + len(unit.operands) / 2) * total / operands
        while share < len(ends) - 1 and middle >= ends[share]:
            share += 1
        shares.append(replace(unit, share=share))
        before += len(unit.operands)
    return shares


def units_by_priority() -> SortedKeyList:
    """Return an empty list that keeps units in order, the most urgent first."""
    return SortedKeyList(key=lambda unit: (unit.first, unit.number))


class Share:
    """Units that belong on one host."""

    __slots__ = ("host", "waiting")

    def __init__(self) -> None:
        self.host: Any | None = None  #: The host that has begun with them, or None.
        self.waiting = units_by_priority()  #: Units without an owner.


class HostShares:
    """Chooses the next unit for a worker by the share of its host."""

    def __init__(self) -> None:
        self._host_of: Mapping[Any, Any] = {}
        self._hosts: set[Any] = set()
        # Shares with waiting units, in order of arrival.
        self._waiting: dict[Share, None] = {}

    def locate(self, host_of: Mapping[Any, Any]) -> None:
        """Set the host of each worker; a departed host loses its shares."""
        self._host_of = host_of
        self._hosts = set(host_of.values())

    def enter(self, unit: Any) -> None:
        """Add a unit that waits for an owner."""
        if unit.share is not None:
            unit.share.waiting.add(unit)
            self._waiting[unit.share] = None

    def leave(self, unit: Any) -> None:
        """Remove a unit that no longer waits."""
        if unit.share is not None:
            unit.share.waiting.remove(unit)
            if not unit.share.waiting:
                del self._waiting[unit.share]

    def opened(self, unit: Any, worker: Any) -> None:
        """Record that a worker opens a unit: its host gets the share unless another has it."""
        if unit.share is not None and unit.share.host not in self._hosts:
            unit.share.host = self._host_of.get(worker)

    def choose(self, worker: Any, first: Any) -> Any:
        """Return a worker's next unit, of the priority and graph of `first`; change nothing."""
        host = self._host_of.get(worker)
        if host is None or first.share is None:
            return first
        urgent = [s for s in self._waiting if s.waiting[0].first[:2] == first.first[:2]]
        own = [s.waiting[0] for s in urgent if s.host == host]
        free = [s.waiting[0] for s in urgent if s.host not in self._hosts]
        if own or free:
            return min(own or free, key=lambda unit: (unit.first, unit.number))
        fullest: Share = max(urgent, key=lambda s: len(s.waiting))
        last = fullest.waiting[-1]
        return last if last.first[:2] == first.first[:2] else fullest.waiting[0]


_MOMENTS = 256  #: Moments at which the memory is summed up.

_Numbers = npt.NDArray[np.float64]


class Fronts:
    """Estimates the memory held while hosts work side by side, each on a run of successive units.

    Each host has a front: the results that its run holds at a time. A front is a row if results are
    needed in the next row of a grid, and small if they are summed up. Units come most urgent first.
    """

    def __init__(self, graph: OperandGraph, units: Sequence[Unit]) -> None:
        starts = np.asarray(graph.inputs.starts, dtype=np.int64)
        self._readers = np.repeat(np.arange(len(graph)), starts[1:] - starts[:-1])
        self._read = np.asarray(graph.inputs.flat, dtype=np.int64)
        self._nbytes = np.asarray(graph.nbytes, dtype=np.float64)
        self._place = self._places(graph, units)

    @staticmethod
    def _places(graph: OperandGraph, units: Sequence[Unit]) -> _Numbers:
        """Return each operand's place from 0 to 1: that of its unit, or of its largest input."""
        place = [0.0] * len(graph)
        total, before = sum(len(unit.operands) for unit in units), 0
        planned = set[int]()
        for unit in units:
            middle = (before + len(unit.operands) / 2) / total
            before += len(unit.operands)
            planned.update(unit.operands)
            for i in unit.operands:
                place[i] = middle
        nbytes = graph.nbytes
        for i, inputs in enumerate(graph.inputs):
            if inputs and i not in planned:
                place[i] = place[max(inputs, key=nbytes.__getitem__)]
        return np.asarray(place)

    def peak(self, runs: int, at_once: int) -> float:
        """Estimate the peak bytes of equally long runs, `at_once` side by side, without copies."""
        run = np.minimum((self._place * runs).astype(np.int64), runs - 1)
        counts = np.bincount(run, minlength=runs)
        rank = np.empty(len(run))
        rank[np.argsort(run, kind="stable")] = np.arange(len(run))
        rank -= (np.cumsum(counts) - counts)[run]
        waves = -(-runs // at_once)
        starts = (run // at_once + (rank + 1) / counts[run]) / waves
        made = self._when_made(starts)
        done = np.full(len(run), 2.0)  # results without readers are held to the end
        done[self._read] = 0.0
        np.maximum.at(done, self._read, made[self._readers])
        change = np.bincount((made * _MOMENTS).astype(np.int64), self._nbytes, _MOMENTS + 2)
        freed = done <= 1.0
        change -= np.bincount(
            (done[freed] * _MOMENTS).astype(np.int64) + 1, self._nbytes[freed], _MOMENTS + 2
        )
        return float(change.cumsum().max())

    def _when_made(self, starts: _Numbers) -> _Numbers:
        """Return when each operand runs: at its turn, or when its last input is made."""
        made = starts.tolist()
        for i, j in zip(self._readers.tolist(), self._read.tolist(), strict=True):
            if made[j] > made[i]:
                made[i] = made[j]
        return np.asarray(made)
