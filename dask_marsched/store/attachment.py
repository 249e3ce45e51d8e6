"""Maps chunks of other workers' segments, and locks them against reuse."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections import Counter

import numpy as np

from dask_marsched.store import file_ranges
from dask_marsched.store.mapping import Mapping, MappingPool, frame_offsets
from dask_marsched.store.releases import Releases
from dask_marsched.store.segment import (
    FLAGS_OFFSET,
    SLOTS,
    Handle,
    SegmentAddress,
    discard,
    has_owner,
    open_segment,
    read_places,
    read_stamp,
)

_Place = tuple[int, int, int]  # slot, offset, length

#: Seconds for which an unused segment stays open. An open segment keeps its memory, even after its
#: owner and nanny have ended.
_IDLE = 2.0
#: Seconds between two looks for memory of dead owners that nobody reads. Adoption takes less,
#: unless ``failover.patience`` is longer.
_CLEAR = 15.0
#: Most extents that one look asks for, on the event loop.
_MOST_LOOKED_AT = 1000


class ChunkGoneError(OSError):
    """A chunk has been released by its owner."""


class Attachment:
    """A segment of another worker, open in this process; raises OSError if it cannot be opened."""

    def __init__(self, address: SegmentAddress, releases: Releases) -> None:
        self.fd = open_segment(address)
        try:
            head = mmap.mmap(self.fd, FLAGS_OFFSET + SLOTS, access=mmap.ACCESS_READ)
        except BaseException:
            os.close(self.fd)
            raise
        self._flags = np.frombuffer(head, np.uint8, SLOTS, FLAGS_OFFSET)
        self.chunks: Counter[_Place] = Counter()
        self.pool = MappingPool(releases)
        #: when it was first seen without chunks, seconds; None while there are any
        self.idle_since: float | None = None
        self._unread: set[int] = set()  # slots without readers when last looked at
        self._first = 0  # the slot to look at next

    def check(self, slot: int) -> None:
        """Raise a ChunkGoneError if the chunk in a slot has been released; ask under a lock."""
        if not self._flags[slot]:
            raise ChunkGoneError("the chunk is gone")

    def clear(self) -> None:
        """Return memory of a dead owner that had no reader at two looks; look at some of it."""
        # One look is not enough: between a reader's death and the next adoption there is none.
        if has_owner(self.fd):
            return
        ours = {slot for slot, _, _ in self.chunks}
        places = read_places(self.fd)
        slots = np.flatnonzero(places[self._first :, 1])[:_MOST_LOOKED_AT] + self._first
        self._first = int(slots[-1]) + 1 if len(slots) == _MOST_LOOKED_AT else 0
        for slot in slots.tolist():
            offset, size = places[slot].tolist()
            # Our own locks would not hinder us.
            if slot in ours or file_ranges.is_locked(self.fd, offset, size):
                self._unread.discard(slot)
            elif slot not in self._unread:
                self._unread.add(slot)
            elif discard(self.fd, slot, offset, size):
                self._unread.discard(slot)

    def orphans(self) -> list[_Place]:
        """Return the chunks mapped here that their owner released or left behind."""
        places = list(self.chunks)
        # An owner that died has left its flags as they were.
        if not places or not has_owner(self.fd):
            return places
        return [place for place in places if not self._flags[place[0]]]

    def close(self) -> None:
        """Close it; locks end with it."""
        self.pool.close()
        os.close(self.fd)


class _Hold:
    """Keeps a peer's chunk from being reused while it exists."""

    __slots__ = ("__weakref__",)


class Attachments:
    """The segments of other workers that chunks are mapped from. Thread-safe."""

    def __init__(self) -> None:
        self._open: dict[bytes, Attachment] = {}
        self.releases = Releases()
        self._retired = False
        self._cleared = 0.0

    def map(self, handle: Handle) -> Mapping:
        """Return a private mapping of a peer's chunk; OSError if it cannot be mapped from here."""
        # The owner must keep the chunk during the call; afterwards our lock does.
        _, nbytes = frame_offsets(handle.lengths)
        place = (handle.slot, handle.offset, nbytes)
        identity = handle.segment.identity
        with self.releases.held():
            attachment = self._open.get(identity)
            if attachment is None:
                attachment = self._open[identity] = Attachment(handle.segment, self.releases)
            attachment.chunks[place] += 1
            attachment.idle_since = None
            # From here on the end of `hold` undoes all this.
            hold = _Hold()
            self.releases.at_end_of(hold, self._release, identity, place)
            file_ranges.lock_read(attachment.fd, handle.offset, nbytes)
            attachment.check(handle.slot)
            return attachment.pool.map(attachment.fd, handle.offset, nbytes, keep=hold)

    def map_stamped(self, handle: Handle, stamp: int) -> Mapping:
        """Map a chunk whose owner may have released it or died; OSError if it is gone."""
        # First without a lock: undoing it would also unlock a chunk of ours that is there now.
        self._check_stamp(handle, stamp)
        mapping = self.map(handle)
        # Again under our lock, which keeps a living owner from reusing the memory.
        self._check_stamp(handle, stamp)
        return mapping

    def _check_stamp(self, handle: Handle, stamp: int) -> None:
        with self.releases.held():
            attachment = self._open.get(handle.segment.identity)
            if attachment is not None and read_stamp(attachment.fd, handle.slot) != stamp:
                raise OSError("the chunk is gone")

    def sweep(self, now: float) -> None:
        """Close what is unused, return what nobody reads; call it from time to time, in seconds."""
        with self.releases.held():
            for identity, attachment in list(self._open.items()):
                if attachment.chunks:
                    continue
                if attachment.idle_since is None:
                    attachment.idle_since = now
                elif now - attachment.idle_since > _IDLE:
                    self._open.pop(identity).close()
            if now - self._cleared > _CLEAR:
                self._cleared = now
                for attachment in self._open.values():
                    with contextlib.suppress(OSError):
                        attachment.clear()

    def retire(self) -> None:
        """Close each segment once unused, as `sweep` is not called any more."""
        with self.releases.held():
            self._retired = True
            for identity in [i for i, a in self._open.items() if not a.chunks]:
                self._open.pop(identity).close()

    @property
    def mapped(self) -> int:
        """Bytes of peers' chunks mapped here."""
        return sum(n for a in list(self._open.values()) for _, _, n in list(a.chunks))

    @property
    def addresses(self) -> int:
        """Bytes of addresses mapped to peers' memory, used or kept for reuse."""
        return self.mapped + sum(a.pool.nbytes for a in list(self._open.values()))

    @property
    def orphaned(self) -> int:
        """Bytes of chunks that exist only for those who map them, as they have no owner."""
        with self.releases.held():  # none is closed meanwhile
            return sum(n for a in self._open.values() for _, _, n in a.orphans())

    def orphans(self) -> set[tuple[bytes, int]]:
        """Return segment and offset of each of these chunks."""
        with self.releases.held():
            return {(i, at) for i, a in self._open.items() for _, at, _ in a.orphans()}

    def _release(self, identity: bytes, place: _Place) -> None:
        attachment = self._open[identity]
        attachment.chunks[place] -= 1
        if attachment.chunks[place]:
            return
        del attachment.chunks[place]
        file_ranges.unlock(attachment.fd, place[1], place[2])
        if self._retired and not attachment.chunks:
            self._open.pop(identity).close()
