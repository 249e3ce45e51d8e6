"""Chooses the results that are evicted to make room below the quota."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Resident:
    """A result in memory, or several that share memory."""

    keys: tuple[Any, ...]
    nbytes: int  #: Bytes freed by the eviction.
    next_use: Any = None  #: Priority of the next operand known to read one of them, or None.
    made: Any = None  #: Their own priority.
    staying: tuple[Any, ...] = ()  #: Keys of small views that are copied instead.


def coldest(
    residents: Iterable[Resident], nbytes: int, keep: Set[Any] = frozenset(), before: Any = None
) -> list[Resident]:
    """Return the results to evict, in order, to free `nbytes` or as much as possible.

    The keys in `keep` and results read before the priority `before` stay. Results without a known
    reader go first, the last made leading, because a later graph most likely reads them in the
    order in which they were made. Then those with the latest reader follow.
    """
    if nbytes <= 0:
        return []
    candidates = [
        resident
        for resident in residents
        if keep.isdisjoint(resident.keys)
        and keep.isdisjoint(resident.staying)
        and (before is None or resident.next_use is None or resident.next_use > before)
    ]
    # Small results come last: evicting many of them costs more than it frees.
    heap = [(r.nbytes * 256 < nbytes, _latest_first(r), n) for n, r in enumerate(candidates)]
    heapq.heapify(heap)
    chosen: list[Resident] = []
    while heap and nbytes > 0:
        resident = candidates[heapq.heappop(heap)[2]]
        chosen.append(resident)
        nbytes -= resident.nbytes
    return chosen


def _latest_first(resident: Resident) -> tuple[bool, tuple[Any, ...]]:
    priority = resident.made if resident.next_use is None else resident.next_use
    return resident.next_use is not None, tuple(-part for part in priority or ())
