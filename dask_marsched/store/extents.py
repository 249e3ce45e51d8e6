"""Allocates extents of a sparse file in size classes, and recycles them. Does no I/O."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from sortedcontainers import SortedKeyList

PAGE = 4096
# With four classes per power of two an extent is at most a quarter longer than requested. Only
# addresses are wasted: the file is sparse.
_SMALLEST_CLASS = 4 * PAGE
#: Extents of at least this size are aligned to it, bytes.
LARGE_PAGE = 2 * 1024 * 1024


@dataclass(eq=False, slots=True)
class Extent:
    """A part of a sparse file, of whole pages."""

    #: unique in the file
    slot: int
    offset: int
    size: int
    #: bytes from the start that hold memory or disk space
    filled: int = 0
    #: whether its owner holds it; if not, it is an orphan, which others may still read, or free
    is_live: bool = False


@dataclass(slots=True)
class Allocation:
    """A live extent, the bytes in it that were filled before, and the extents to punch first."""

    extent: Extent
    filled_before: int
    to_punch: list[Extent] = field(default_factory=list)


def size_class(nbytes: int) -> int:
    """Return the size of the smallest extent for ``nbytes`` bytes."""
    if nbytes <= _SMALLEST_CLASS:
        return _SMALLEST_CLASS
    quarter = 1 << max(0, (nbytes - 1).bit_length() - 3)
    return -(-nbytes // quarter) * quarter


def whole_pages(nbytes: int) -> int:
    """Return ``nbytes`` rounded up to whole pages."""
    return -(-nbytes // PAGE) * PAGE


class ExtentTable:
    """The extents of one sparse file from byte ``start`` to ``end``. Not thread-safe."""

    def __init__(self, *, start: int, end: int, cap: int, slots: int) -> None:
        self.start, self.end = start, end
        #: upper bound on the filled bytes of all extents
        self.cap = cap
        #: upper bound on the number of extents
        self.slots = slots
        # Filled bytes: in all extents, in live and in orphaned ones.
        self.filled = 0
        self.live = 0
        self.orphaned = 0
        self.orphans: dict[Extent, None] = {}  # the one that was looked at last comes last
        self._top = start
        self.n_slots = 0
        self._least_idle = 0
        self._free: SortedKeyList = SortedKeyList(key=lambda e: (e.size, -e.filled, e.offset))

    @property
    def idle(self) -> int:
        """Bytes filled in free extents."""
        return self.filled - self.live - self.orphaned

    def idle_sizes(self) -> list[int]:
        """Return the filled bytes of each free extent that has any."""
        return [extent.filled for extent in self._free if extent.filled]

    def allocate(self, nbytes: int) -> Allocation | None:
        """Return a live extent for ``nbytes`` bytes; None, with nothing changed, if none fits."""
        fill = whole_pages(nbytes)
        size = size_class(nbytes)
        chosen, new = self._smallest_free(size), self._next_new(size)
        if chosen is not None and new is not None and chosen.size > 2 * size:
            chosen = None  # left to chunks of its own size
        extent = chosen or new
        if extent is None:
            return None
        growth = max(0, fill - extent.filled)
        to_punch = self._room_for(growth, extent)
        if to_punch is None:
            return None
        # Nothing fails from here on.
        if chosen is None:
            self._top = extent.offset + extent.size
            self.n_slots += 1
        else:
            self._free.remove(extent)
        for victim in to_punch:
            self._empty(victim)
        before = extent.filled
        extent.filled += growth
        self.filled += growth
        extent.is_live = True
        self.live += extent.filled
        self._least_idle = min(self._least_idle, self.idle)
        return Allocation(extent, before, to_punch)

    def release(self, extent: Extent) -> None:
        """Mark a live extent as released by its owner; others may still read it."""
        assert extent.is_live
        extent.is_live = False
        self.live -= extent.filled
        self.orphaned += extent.filled
        self.orphans[extent] = None

    def reclaim(self, unread: Callable[[Extent], bool], most: int | None = None) -> list[Extent]:
        """Free the orphaned extents for which ``unread`` is true, and return them.

        At most so many are looked at, in turn.
        """
        freed = []
        for extent in list(islice(self.orphans, most)):
            is_free = unread(extent)  # may raise
            del self.orphans[extent]
            if is_free:
                self.orphaned -= extent.filled
                self._free.add(extent)
                freed.append(extent)
            else:
                self.orphans[extent] = None
        return freed

    @property
    def is_unused(self) -> bool:
        """Whether there are extents, and all of them are free."""
        return 0 < self.n_slots == len(self._free)

    def start_anew(self) -> int:
        """Forget all extents, which are free; return the end of the space to be punched.

        Free extents keep their size for ever: chunks of ever other sizes use up all addresses.
        """
        assert self.is_unused
        end, self._top = self._top, self.start
        self.n_slots = self.filled = self._least_idle = 0
        self._free.clear()
        return end

    def empty(self, extent: Extent) -> None:
        """Count a free extent as empty; its space must be punched."""
        self._empty(extent)
        self._least_idle = min(self._least_idle, self.idle)

    def trim(self, nbytes: float = math.inf) -> list[Extent]:
        """Empty free extents of ``nbytes`` bytes in all, largest first, and return them.

        Their space must be punched.
        """
        victims = []
        for extent in [e for e in reversed(self._free) if e.filled]:
            if nbytes <= 0:
                break
            nbytes -= extent.filled
            self.empty(extent)
            victims.append(extent)
        return victims

    def trim_unneeded(self) -> list[Extent]:
        """Empty and return extents that have been free since the last call, largest first."""
        victims = []
        for extent in [e for e in reversed(self._free) if e.filled]:
            if extent.filled <= self._least_idle:
                self._least_idle -= extent.filled
                self._empty(extent)
                victims.append(extent)
        self._least_idle = self.idle
        return victims

    def _smallest_free(self, size: int) -> Extent | None:
        at = self._free.bisect_key_left((size, -self.end, 0))
        return self._free[at] if at < len(self._free) else None

    def _next_new(self, size: int) -> Extent | None:
        apart = LARGE_PAGE if size >= LARGE_PAGE else PAGE
        offset = -(-self._top // apart) * apart
        if offset + size > self.end or self.n_slots == self.slots:
            return None
        return Extent(slot=self.n_slots, offset=offset, size=size)

    def _room_for(self, growth: int, but: Extent) -> list[Extent] | None:
        """Return the free extents to empty, largest first, before the file may grow."""
        excess = self.filled + growth - self.cap
        victims: list[Extent] = []
        for extent in reversed(self._free):
            if excess <= 0:
                break
            if extent is not but and extent.filled:
                victims.append(extent)
                excess -= extent.filled
        return victims if excess <= 0 else None

    def _empty(self, extent: Extent) -> None:
        self._free.remove(extent)  # its key changes; raises ValueError if it is not free
        self.filled -= extent.filled
        extent.filled = 0
        self._free.add(extent)
