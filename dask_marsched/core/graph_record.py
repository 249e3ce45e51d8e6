"""Records the state of every operand of a planned graph, for display."""

from __future__ import annotations

import array
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.operand import State
from dask_marsched.core.plan import Unit
from dask_marsched.core.plan_layout import NO_UNIT, Ints, PlanLayout
from dask_marsched.core.series import Series

#: The states that the scheduler knows; heartbeats tell how many of the sent operands are running.
WAITING, READY, SENT, FINISHED, FREED, FATAL, CANCELLED = range(7)
CODES = 7
#: Names of the counts by code (see `split`).
NAMES = ("unscheduled", "ready", "running", "finished", "freed", "fatal", "cancelled")
NO_WORKER = 0xFFFF  #: The worker number of operands that were not sent.
MOST_WORKERS = 128  #: Workers that a picture distinguishes; the others count as one.
_MOST_CAUSES = 20  #: Causes that are counted separately.


def counts_by_state(counts: Sequence[int], running: int) -> dict[str, int]:
    """Return counts by code as counts by name of `State`; `running` operands are running."""
    by_name = {state.value: 0 for state in State}
    by_name.update(zip(NAMES, split(counts, running), strict=True))
    return by_name


def split(counts: Sequence[int], running: int) -> list[int]:
    """Return counts in the order of `NAMES`: sent operands count as running, the rest as ready."""
    own = list(counts)
    own[SENT] = min(running, counts[SENT])
    own[READY] += counts[SENT] - own[SENT]
    return own


class Causes:
    """Counts why operands failed or were cancelled, for a bounded number of causes."""

    def __init__(self) -> None:
        self.count: Counter[tuple[str, str, str]] = Counter()
        self.more = 0

    def add(self, state: str, what: str, why: str) -> None:
        """Count an operand that entered `state` because `what` raised or met `why`."""
        cause = (state, what, why)
        if cause in self.count or len(self.count) < _MOST_CAUSES:
            self.count[cause] += 1
        else:
            self.more += 1

    @classmethod
    def joined(cls, several: Iterable[Causes]) -> Causes:
        """Return the causes of several graphs together."""
        joined = cls()
        for own in several:
            joined.more += own.more
            joined.count.update(own.count)
        return joined

    def to_list(self) -> list[dict[str, Any]]:
        """Return ``state``, ``operand``, ``cause`` and ``count``, the most frequent cause first."""
        rows = [
            {"state": state, "operand": what, "cause": why, "count": count}
            for (state, what, why), count in self.count.most_common()
        ]
        if self.more:
            rows.append({"state": "", "operand": "", "cause": "others", "count": self.more})
        return rows


class GraphArrays(NamedTuple):
    """A graph as a `GraphRecord` keeps it; to make it takes milliseconds for a large graph."""

    starts: Ints
    flat: Ints
    nbytes: Any
    known: bytes

    @classmethod
    def of(cls, graph: OperandGraph) -> GraphArrays:
        """Return the arrays of a graph."""
        return cls(
            np.array(graph.inputs.starts, dtype=np.int32),
            np.array(graph.inputs.flat, dtype=np.int32),
            np.array(graph.nbytes, dtype=np.float32),
            bytes(graph.known),
        )


class GraphRecord:
    """The states of a planned graph's operands; a transition updates one byte and two counts."""

    def __init__(
        self,
        number: int,
        planned: float,
        arrays: GraphArrays,
        units: Iterable[Unit],
        codes: Iterable[int],
    ) -> None:
        self.number = number
        self.planned = planned  #: When it was planned, in seconds.
        self.finished: float | None = None  #: When the last operand was done, in seconds.
        self.moved = 0.0  #: Bytes of its results moved between workers.
        self.replanned = 0
        self.running = 0
        self.operands = len(arrays.nbytes)
        self._units: tuple[int, int] | None = None
        self.starts, self.flat, self.nbytes, self.known = arrays
        self.unit_of: Ints = np.full(self.operands, NO_UNIT, dtype=np.int32)
        self._place(units)
        self.codes = bytearray(codes)
        self.worker_of = array.array("H", [NO_WORKER]) * self.operands
        self.counts = np.bincount(self.code_array(), minlength=CODES).tolist()  #: Operands by code.
        self.left: int = sum(self.counts[:FINISHED])  #: Operands not done yet.
        self.causes = Causes()
        self.series = Series(NAMES)
        self._layout: PlanLayout | None = None

    def plan_again(self, units: Iterable[Unit]) -> None:
        """Replace the units of some operands."""
        self.replanned += 1
        self._place(units)
        self._layout = None

    def _place(self, units: Iterable[Unit]) -> None:
        self._units = None
        members = [unit.operands for unit in units]
        firsts = np.array([own[0] for own in members], dtype=np.int32)
        operands = np.fromiter(itertools.chain.from_iterable(members), dtype=np.int64)
        self.unit_of[operands] = np.repeat(firsts, [len(own) for own in members])

    def units(self) -> tuple[int, int]:
        """Return the numbers of units and of operands in them, computed once for each plan."""
        if self._units is None:
            placed = self.unit_of[self.unit_of != NO_UNIT]
            self._units = len(np.unique(placed)), len(placed)
        return self._units

    def set_code(self, i: int, code: int) -> None:
        """Record the new state of an operand."""
        before = self.codes[i]
        if code == before:
            return
        self.codes[i] = code
        counts = self.counts
        counts[before] -= 1
        counts[code] += 1
        if before < FINISHED <= code:
            self.left -= 1
        elif code < FINISHED <= before:
            self.left += 1
            self.finished = None

    def set_codes(self, numbers: Any, codes: Any, workers: Any) -> None:
        """Record transitions given as arrays; the last one of an operand counts."""
        own = np.frombuffer(self.codes, dtype=np.uint8)
        touched = np.unique(numbers)
        before = np.bincount(own[touched], minlength=CODES)
        own[numbers] = codes
        after = np.bincount(own[touched], minlength=CODES)
        self.counts = (self.counts + after - before).tolist()
        fewer = int(before[:FINISHED].sum() - after[:FINISHED].sum())
        self.left -= fewer
        if fewer < 0:
            self.finished = None
        sent = workers != NO_WORKER
        np.frombuffer(self.worker_of, dtype=np.uint16)[numbers[sent]] = workers[sent]

    def layout(self, most: int) -> PlanLayout:
        """Return the picture with at most `most` cells; call its `advance` until it is done."""
        if self._layout is None or self._layout.most != most:
            self._layout = PlanLayout(self.starts, self.flat, self.unit_of, most)
        return self._layout

    def code_array(self) -> Any:
        """Return a copy of the codes: a bytearray with exported buffers cannot be pickled."""
        return np.frombuffer(bytes(self.codes), dtype=np.uint8)

    def cells(self, layout: PlanLayout) -> tuple[Any, Any, Any]:
        """Return counts by cell and code, each cell's main worker or `NO_WORKER`, and its share."""
        cell_of = layout.cell_of.astype(np.int64)
        cells = len(layout.column)
        codes = np.bincount(cell_of * CODES + self.code_array(), minlength=cells * CODES)
        worker_of = np.array(self.worker_of, dtype=np.uint16)
        sent = worker_of != NO_WORKER
        at = cell_of[sent] * MOST_WORKERS + np.minimum(worker_of[sent], MOST_WORKERS - 1)
        by_worker = np.bincount(at, minlength=cells * MOST_WORKERS).reshape(cells, MOST_WORKERS)
        total = by_worker.sum(1)
        most = by_worker.argmax(1)
        share = by_worker[np.arange(cells), most] / np.maximum(total, 1)
        return codes.reshape(cells, CODES), np.where(total > 0, most, NO_WORKER), share
