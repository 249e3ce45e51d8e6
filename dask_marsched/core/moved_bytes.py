"""Counts bytes moved between workers, in a table of bounded size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

OTHERS = "others"  #: Row and column of all workers that are not shown.
_MOST_SINCE = 2000  #: Most pairs buffered before they are added to the table.


class MovedBytes:
    """Bytes by sender and receiver. The counts of workers that left go to `OTHERS`."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {OTHERS: 0}
        self._free: list[int] = []
        self._bytes = np.zeros((8, 8))
        # Recent counts: updating a dict is faster than an array cell.
        self._since: dict[tuple[int, int], float] = {}
        self.total = 0.0

    def add(self, sender: str, receiver: str, nbytes: float) -> None:
        """Count bytes."""
        pair = self._number_of(sender), self._number_of(receiver)
        self._since[pair] = self._since.get(pair, 0.0) + nbytes
        self.total += nbytes
        if len(self._since) > _MOST_SINCE:
            self._settle()

    def _settle(self) -> None:
        for (i, j), nbytes in self._since.items():
            self._bytes[i, j] += nbytes
        self._since.clear()

    def _number_of(self, worker: str) -> int:
        number = self._number.get(worker)
        if number is None:
            number = self._free.pop() if self._free else len(self._number)
            self._number[worker] = number
            if number >= len(self._bytes):
                larger = np.zeros((2 * number, 2 * number))
                larger[: len(self._bytes), : len(self._bytes)] = self._bytes
                self._bytes = larger
        return number

    def remove(self, worker: str) -> None:
        """Move a departed worker's counts to `OTHERS`."""
        self._settle()
        number = self._number.pop(worker, None)
        if number is not None:
            self._bytes[0] += self._bytes[number]
            self._bytes[number] = 0
            self._bytes[:, 0] += self._bytes[:, number]
            self._bytes[:, number] = 0
            self._free.append(number)

    def table(self, most: int, host_of: Mapping[str, str]) -> dict[str, Any]:
        """Return the bytes between workers, or between hosts if there are too many workers.

        ``bytes`` has a list for each sender, in the order of ``names``, and ``between`` is
        ``"workers"`` or ``"hosts"``. At most `most` rows, at least 2, are shown: those that moved
        least count to `OTHERS`.
        """
        self._settle()
        workers = [name for name in self._number if name != OTHERS]
        between = "workers" if len(workers) < most else "hosts"
        name_of = {w: w if between == "workers" else host_of.get(w, OTHERS) for w in workers}
        names = [OTHERS, *sorted({*name_of.values()} - {OTHERS})]
        place = {name: i for i, name in enumerate(names)}
        numbers = np.array([0, *(self._number[w] for w in workers)])
        groups = np.array([0, *(place[name_of[w]] for w in workers)])
        joined = _grouped(self._bytes[np.ix_(numbers, numbers)], groups, len(names))
        if len(names) > most:
            names, joined = _largest(names, joined, most)
        if not joined[0].any() and not joined[:, 0].any():
            names, joined = names[1:], joined[1:, 1:]
        return {"between": between, "names": names, "bytes": joined.tolist()}


def _largest(names: list[str], joined: Any, most: int) -> tuple[list[str], Any]:
    """Keep the names that moved most, and add the others to the first row and column."""
    moved = joined.sum(0) + joined.sum(1)
    kept = sorted((np.argsort(-moved[1:], kind="stable")[: most - 1] + 1).tolist())
    groups = np.zeros(len(names), dtype=int)
    groups[kept] = np.arange(1, len(kept) + 1)
    return [OTHERS, *(names[k] for k in kept)], _grouped(joined, groups, len(kept) + 1)


def _grouped(table: Any, groups: Any, size: int) -> Any:
    """Return a table with the rows and columns of each group summed up."""
    rows = np.zeros((size, len(groups)))
    np.add.at(rows, groups, table)
    grouped = np.zeros((size, size))
    np.add.at(grouped.T, groups, rows.T)
    return grouped
