"""Publishes a worker's chunks in its segment of shared memory, which only this worker writes to."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import is_

import numpy as np

from dask_marsched.store import file_ranges
from dask_marsched.store.array_memory import LEAST_NBYTES, RESERVED_PER_THREAD, Grants, fill
from dask_marsched.store.extents import LARGE_PAGE, Allocation, Extent, ExtentTable
from dask_marsched.store.file_ranges import punch
from dask_marsched.store.mapping import Mapping, MappingPool, copy, frame_offsets, is_modified
from dask_marsched.store.releases import Releases
from dask_marsched.store.segment import (
    DATA_OFFSET,
    FLAGS_OFFSET,
    PLACES_OFFSET,
    SLOTS,
    STAMPS_OFFSET,
    Handle,
    SegmentAddress,
    mark_owned,
    open_segment,
)
from dask_marsched.store.shared_memory import SharedMemory

logger = logging.getLogger(__name__)

# Size classes fragment the address space, so that it is larger than the memory.
ADDRESSES_PER_BYTE = 4
# Upper bounds, as shares of the cap, on the grants that no array uses and on those that nothing was
# published in. The rest is for copies.
_UNUSED, _UNPUBLISHED = 0.25, 0.75
#: Most released chunks that are looked at each time, to see whether peers still read them. The
#: kernel takes 10 ms for 1,000 of them, and four times as long for twice as many.
_LOOKED_AT = 64
# When memory is short, at most the cap divided by this is reserved for the next arrays.
_SPARE = 16


def segment_size(cap: int) -> int:
    """Return the length of the segment for an arena of ``cap`` bytes."""
    return DATA_OFFSET + ADDRESSES_PER_BYTE * cap


class SharedChunk:
    """A published chunk, immutable, released with this object; peers keep it by their own locks."""

    __slots__ = ("__weakref__", "_arena", "_extent", "address", "handle", "stamp")

    def __init__(
        self, arena: Arena, extent: Extent, handle: Handle, stamp: int, address: int
    ) -> None:
        #: unique in the segment
        self.stamp = stamp
        #: of the array allocated in the chunk; 0 if the chunk is a copy
        self.address = address
        self._arena = arena
        self._extent = extent
        self.handle = handle

    def map(self) -> Mapping:
        """Return a private mapping of its frames, which keeps the chunk; raises OSError."""
        _, nbytes = frame_offsets(self.handle.lengths)
        return self._arena.pool.map(self._arena.fd, self.handle.offset, nbytes, keep=self)

    def modified(self) -> bool:
        """Whether the array that was allocated in it has been written to since."""
        return bool(self.address) and is_modified(self.address, self._extent.filled)


class Arena:
    """The owner's side of a segment, of ``segment_size(cap)`` bytes. Thread-safe.

    Nobody else writes to it while it exists. It takes at most ``cap`` bytes of memory, and
    ``makers`` threads allocate arrays in it. Raises OSError if it cannot be opened, or the kernel
    lacks the locks.
    """

    def __init__(self, address: SegmentAddress, cap: int, makers: int = 1) -> None:
        self.address = address
        #: upper bound on the memory used, bytes
        self.cap = cap
        #: published chunks; of these, those that reused memory, and those that needed no copy
        self.published = self.recycled = self.made_here = 0
        #: chunks that did not fit under the cap or in the system's memory
        self.refused = 0
        fd = open_segment(address)
        try:
            mark_owned(fd)
            self._memory = SharedMemory(fd, segment_size(cap))
        except BaseException:
            os.close(fd)
            raise
        self._flags = np.frombuffer(self._memory, np.uint8, SLOTS, FLAGS_OFFSET)
        self._flags[:] = 0
        self._stamps = np.frombuffer(self._memory, np.uint64, SLOTS, STAMPS_OFFSET)
        places = np.frombuffer(self._memory, np.int64, 2 * SLOTS, PLACES_OFFSET)
        self._places = places.reshape(SLOTS, 2)
        self._next_stamp = itertools.count(1)
        self._table = ExtentTable(start=DATA_OFFSET, end=segment_size(cap), cap=cap, slots=SLOTS)
        self._releases = Releases()
        self._grants = Grants(self._memory)
        #: upper bound on memory reserved for the next arrays, bytes
        self.spare = min(RESERVED_PER_THREAD * makers, cap // _SPARE)
        self._closed = False
        #: private mappings of our own chunks
        self.pool = MappingPool(self._releases)

    @property
    def fd(self) -> int:
        """Descriptor of the segment, open as long as the memory is mapped."""
        return self._memory.fd

    @property
    def live(self) -> int:
        """Bytes in chunks that this worker holds."""
        return self._table.live - self._grants.nbytes

    @property
    def filled(self) -> int:
        """Bytes of memory in use, including chunks that only peers read and free extents."""
        return self._table.filled - self._grants.empty

    def held(self) -> int:
        """Return the bytes in use because of this worker: all but what only peers still read.

        Released chunks that were not looked at yet count as read by peers.
        """
        with self._releases.held():
            self._reclaim(_LOOKED_AT)
            return self.filled - self._table.orphaned

    def put(
        self, header: bytes, frames: Sequence[memoryview], *, plain: bool = False
    ) -> SharedChunk | None:
        """Publish frames of bytes; None if there is no room. Not on the event loop."""
        # An array allocated here is not copied: later writes to it are private to this process.
        lengths = tuple(frame.nbytes for frame in frames)
        offsets, nbytes = frame_offsets(lengths)
        made_here = self._take(frames[0]) if plain else None
        if made_here is not None:
            self.made_here += 1
            address = self._memory.address + made_here.offset
            return self._publish(made_here, header, lengths, plain, address)
        allocation = self._allocate(nbytes)
        if allocation is None and self._withdraw():
            allocation = self._allocate(nbytes)
        if allocation is None:
            self.refused += 1
            return None
        extent, there = allocation.extent, allocation.filled_before
        if extent.filled >= LARGE_PAGE > there and fill(
            self._memory, self.fd, extent.offset, extent.filled
        ):
            there = extent.filled
        try:
            for start, frame in zip(offsets, frames, strict=True):
                self._write(extent.offset + start, frame, start + frame.nbytes <= there)
        except OSError as error:
            logger.info("no more shared memory: %s", error)
            self._abandon(extent)
            self.refused += 1
            return None
        except BaseException:
            self._abandon(extent)
            raise
        self.recycled += allocation.filled_before > 0
        return self._publish(extent, header, lengths, plain)

    def grant(self, sizes: Iterable[int]) -> None:
        """Reserve an extent for one array of each size that fits. Not on the event loop."""
        if not self._grants.are_possible:
            return  # a grant that fails would cost free memory
        # Memory is used only once an array is allocated there.
        for nbytes in sizes:
            allocation = self._allocate(nbytes) if self._may_grant(nbytes) else None
            if allocation is None:
                continue
            extent, there = allocation.extent, allocation.filled_before
            if 0 < there < extent.filled:  # a grant is filled entirely, or empty
                punch(self.fd, extent.offset, extent.size)
            with self._releases.held():
                is_filled = there >= extent.filled
                is_granted = not self._closed and self._grants.add(extent, is_filled=is_filled)
            if not is_granted:
                self._abandon(extent)
                return

    def recycle(self) -> None:
        """Grant free extents to the next arrays, up to `spare` bytes. Not on the event loop."""
        with self._releases.held():
            self._reclaim(_LOOKED_AT)
            sizes = self._table.idle_sizes()
        room = self.spare - self._grants.filled
        for nbytes in sizes:
            if LEAST_NBYTES <= nbytes <= room:
                self.grant([nbytes])
                room -= nbytes

    def _may_grant(self, nbytes: int) -> bool:
        """Whether one more grant fits, after withdrawing those unused for longest."""
        unused, granted = int(_UNUSED * self.cap), int(_UNPUBLISHED * self.cap)
        if nbytes > unused:
            return False
        excess = max(self._grants.unused - unused, self._grants.nbytes - granted) + nbytes
        with self._releases.held():
            self._let_go(self._grants.withdraw_oldest(excess))
        return self._grants.nbytes + nbytes <= granted

    def is_allocated_here(self, address: int, nbytes: int) -> bool:
        """Whether an array, given by its address, lies in this arena and needs no copy."""
        return not self._closed and self._grants.can_take(address, nbytes)

    def trim(self) -> int:
        """Return all unused memory to the system; return how many bytes that were."""
        self._withdraw()
        return self._trim(self._table.trim)

    @property
    def has_excess(self) -> bool:
        """Whether `trim_excess` might return memory."""
        return self._grants.filled + self._table.idle + self._table.orphaned > self.spare

    def trim_excess(self) -> int:
        """Return all unused memory but `spare` bytes. Not on the event loop."""
        return self._trim(
            lambda: self._table.trim(self._grants.filled + self._table.idle - self.spare)
        )

    def trim_unneeded(self) -> int:
        """Return memory that has been unused since the last call. Not on the event loop."""
        self._withdraw(unneeded=True)
        return self._trim(self._table.trim_unneeded)

    def _trim(self, choose: Callable[[], list[Extent]]) -> int:
        with self._releases.held():
            self._reclaim()
            before = self._table.filled
            for extent in choose():
                punch(self.fd, extent.offset, extent.size)
            return before - self._table.filled

    def close(self) -> None:
        """Stop publishing, and release unused memory. Chunks stay while anybody holds them."""
        self._closed = True
        with self._releases.held():
            self._give_back()
        self.trim()
        self.pool.close()

    def __del__(self) -> None:
        if hasattr(self, "pool"):
            self._grants.retire()
            self.pool.close()

    def _take(self, frame: memoryview) -> Extent | None:
        array = np.frombuffer(frame, np.uint8)
        with self._releases.held():
            return None if self._closed else self._grants.take(array.ctypes.data, array.nbytes)

    def _publish(
        self,
        extent: Extent,
        header: bytes,
        lengths: tuple[int, ...],
        plain: bool,
        address: int = 0,
    ) -> SharedChunk:
        stamp = next(self._next_stamp)
        self._stamps[extent.slot] = stamp
        self._flags[extent.slot] = 1
        self.published += 1
        handle = Handle(self.address, extent.slot, extent.offset, header, lengths, plain)
        chunk = SharedChunk(self, extent, handle, stamp, address)
        self._releases.at_end_of(chunk, self._release, extent)
        return chunk

    def _withdraw(self, *, unneeded: bool = False) -> bool:
        with self._releases.held():
            return self._let_go(self._grants.withdraw(unneeded=unneeded))

    def _let_go(self, withdrawn: list[tuple[Extent, bool]]) -> bool:
        for extent, is_filled in withdrawn:
            self._release(extent)
            if not is_filled:
                self._table.reclaim(partial(is_, extent))
                self._table.empty(extent)
        return bool(withdrawn)

    def _allocate(self, nbytes: int) -> Allocation | None:
        with self._releases.held():
            if self._closed or not nbytes:
                return None
            self._reclaim(_LOOKED_AT)
            allocation = self._table.allocate(nbytes)
            if allocation is None and self._reclaim():
                allocation = self._table.allocate(nbytes)
            if allocation is None and nbytes <= self.cap and self._table.is_unused:
                self._places[: self._table.n_slots] = 0
                punch(self.fd, DATA_OFFSET, self._table.start_anew() - DATA_OFFSET)
                allocation = self._table.allocate(nbytes)
            if allocation is not None:
                for extent in allocation.to_punch:
                    punch(self.fd, extent.offset, extent.size)
                extent = allocation.extent
                self._places[extent.slot] = extent.offset, extent.size
            return allocation

    def _write(self, at: int, frame: memoryview, is_there: bool) -> None:
        if is_there:
            # A copy into existing pages is fastest.
            into = np.frombuffer(self._memory, np.uint8, frame.nbytes, at)
            copy(into, np.frombuffer(frame, np.uint8))
            return
        # If the system is out of memory, a store to a new page would kill this process; a write
        # only fails.
        while frame:
            n = os.pwrite(self.fd, frame, at)
            at, frame = at + n, frame[n:]

    def _abandon(self, extent: Extent) -> None:
        with self._releases.held():
            self._table.release(extent)
            self._table.reclaim(partial(is_, extent))
            for victim in self._table.trim():
                punch(self.fd, victim.offset, victim.size)

    def _release(self, extent: Extent) -> None:
        self._flags[extent.slot] = 0
        self._stamps[extent.slot] = 0
        self._table.release(extent)
        if self._closed and self.fd >= 0:
            self._give_back()

    def _give_back(self) -> None:
        """Return the unused memory of a closed arena, as nothing else will."""
        for extent in self._grants.retire():
            self._table.release(extent)
        for extent in self._reclaim():
            self._table.empty(extent)
            punch(self.fd, extent.offset, extent.size)

    def _reclaim(self, most: int | None = None) -> list[Extent]:
        return self._table.reclaim(
            lambda e: (
                not self._grants.is_used(e) and file_ranges.is_unread(self.fd, e.offset, e.size)
            ),
            most,
        )
