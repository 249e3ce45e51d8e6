"""Lays out a graph for display: depth as columns, the units of the plan as rows."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

NO_UNIT = -1  #: Operand of no unit: it has inputs, or belongs to no plan.

Ints = NDArray[np.int32]


class PlanLayout:
    """The at most `most` cells of a graph's picture, computed step by step.

    In a graph of more operands neighbours share a cell. `starts` and `flat` are those of
    `core.graph.Edges`; `unit_of` is the first operand of each operand's unit, or `NO_UNIT`.
    """

    def __init__(self, starts: Ints, flat: Ints, unit_of: Ints, most: int = 2000) -> None:
        self.operands = len(unit_of)
        self.most = most
        self.is_continued = False  #: Whether a callback on the event loop calls `advance`.
        self._starts, self._flat = starts, flat
        units = np.unique(unit_of[unit_of != NO_UNIT])
        self.units = len(units)
        # Operands without inputs and unit are placed by number.
        place = np.searchsorted(units, np.arange(self.operands), side="right") - 1.0
        # The operands of a unit share its row.
        known = np.flatnonzero(unit_of != NO_UNIT)
        known = known[np.argsort(unit_of[known], kind="stable")]
        number = np.searchsorted(units, unit_of[known])
        size = np.bincount(number, minlength=self.units)
        rank = np.arange(len(known)) - (np.cumsum(size) - size)[number]
        place[known] = number + (rank + 0.5) / size[number]
        self._initial = len(known)
        self._place = np.maximum(place, 0.0)
        self._depth = np.zeros(self.operands, dtype=np.int32)
        self._next = 0
        self.cell_of: Ints = np.zeros(0, dtype=np.int32)  #: The cell of each operand.
        #: Column and row of each cell.
        self.column: Ints = np.zeros(0, dtype=np.int32)
        self.row: Ints = np.zeros(0, dtype=np.int32)
        #: Size of the picture, and depth of the graph; a column may stand for several depths.
        self.columns = self.rows = self.depth = 0
        self.done = False

    @property
    def share(self) -> float:
        """Completed share of the layout, from 0 to 1."""
        return 1.0 if self.done else self._next / (self.operands + 1)

    def advance(self, count: int) -> bool:
        """Lay out `count` more operands; return whether the layout is complete."""
        if self.done:
            return True
        first, last = self._next, min(self._next + count, self.operands)
        self._place_operands(first, last)
        self._next = last
        if last == self.operands:
            self._make_cells()
            self.done = True
        return self.done

    def _place_operands(self, first: int, last: int) -> None:
        """Place operands right of their inputs, at the mean of their rows."""
        begin = int(self._starts[first]) if first < self.operands else 0
        starts = (self._starts[first : last + 1] - begin).tolist()
        # Inputs may lie before this slice.
        flat = self._flat[begin : begin + starts[-1]]
        before_depth = self._depth[flat].tolist()
        before_place = self._place[flat].tolist()
        numbers = flat.tolist()
        depth = self._depth[first:last].tolist()
        place = self._place[first:last].tolist()
        for k in range(last - first):
            begin, end = starts[k], starts[k + 1]
            if begin == end:
                continue
            deepest, total = -1, 0.0
            for e in range(begin, end):
                j = numbers[e] - first
                d, p = (depth[j], place[j]) if j >= 0 else (before_depth[e], before_place[e])
                if d > deepest:
                    deepest = d
                total += p
            depth[k] = deepest + 1
            place[k] = total / (end - begin)
        self._depth[first:last] = depth
        self._place[first:last] = place

    def _make_cells(self) -> None:
        n = self.operands
        if not n:
            return
        deepest = self.depth = int(self._depth.max()) + 1
        if n <= self.most:
            self._cell_for_each(deepest)
            return
        # At most as many columns as a square has, and a row for each initial operand.
        side = max(1, math.isqrt(self.most))
        self.columns = min(deepest, side)
        self.rows = max(1, min(self.most // self.columns, 4 * side, max(1, self._initial)))
        column = self._depth.astype(np.int64) * self.columns // deepest
        scale = self.rows / max(1, self.units)
        row = np.minimum((self._place * scale).astype(np.int64), self.rows - 1)
        found, cell_of = np.unique(row * self.columns + column, return_inverse=True)
        self.cell_of = cell_of.astype(np.int32).reshape(n)
        self.column = (found % self.columns).astype(np.int32)
        self.row = (found // self.columns).astype(np.int32)

    def _cell_for_each(self, deepest: int) -> None:
        """Give each operand a cell; operands of equal depth are spread over the height."""
        n = self.operands
        order = np.lexsort((np.arange(n), self._place, self._depth))
        depth = self._depth[order]
        first = np.searchsorted(depth, np.arange(deepest), side="left")
        rank = np.arange(n) - first[depth]
        height = np.bincount(depth, minlength=deepest)
        self.columns, self.rows = deepest, int(height.max())
        # Spread over the height, so that a join stands beside its inputs.
        spread = ((rank + 0.5) * self.rows / height[depth]).astype(np.int32)
        self.cell_of = np.arange(n, dtype=np.int32)
        self.column = self._depth.astype(np.int32)
        self.row = np.zeros(n, dtype=np.int32)
        self.row[order] = np.minimum(spread, self.rows - 1)
