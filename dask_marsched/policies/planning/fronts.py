"""Estimates the memory held while hosts work side by side, each on a run of successive units.

Every run is a front through the graph. If results are needed in the next row of a grid, each front
holds a row; if they are summed up, it holds little.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.plan import Unit

#: Moments at which the memory is summed up.
_MOMENTS = 256

_Numbers = npt.NDArray[np.float64]


class Fronts:
    """A graph and its units, most urgent first, on a line that is cut into runs."""

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
        """Estimate the peak memory in bytes of `runs` runs, with `at_once` hosts on one run each.

        Runs are assumed to take equally long, and results to be held until the last reader has run.
        Queued operands and transfers are not counted.
        """
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
