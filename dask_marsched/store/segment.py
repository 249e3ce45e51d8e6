"""Creates and opens segments: unnamed shared memory, found through a process's descriptor.

Layout: a page of header, a flag byte per extent (1 while its owner holds it), a stamp per extent
that identifies its content, the place of each extent ever used, then the extents. The owner locks
the first byte while it lives.
"""

from __future__ import annotations

import fcntl
import os
import struct
import uuid
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_marsched.store import file_ranges
from dask_marsched.store.extents import PAGE

#: Identifies the layout; change it together with the layout.
_MAGIC = b"dask-marsched\x00\x00\x03"
_HEAD = struct.Struct("=16s16s")
#: Offset of the owner's charge (see `dask_marsched.store.charge`).
CHARGE_OFFSET = 64
#: Offset of the flags, and the number of extents.
FLAGS_OFFSET = PAGE
SLOTS = 15 * PAGE
#: Offset of the stamps: each chunk's own number while its owner holds it, else 0.
STAMPS_OFFSET = FLAGS_OFFSET + SLOTS
STAMP = struct.Struct("=Q")
#: Offset of the places: offset and size of each extent, bytes.
PLACES_OFFSET = STAMPS_OFFSET + STAMP.size * SLOTS
#: Offset of the extents, bytes.
DATA_OFFSET = PLACES_OFFSET + 16 * SLOTS


class SegmentAddress(NamedTuple):
    """A segment: its identity, and a descriptor of it in a process on this host."""

    pid: int
    fd: int
    identity: bytes


class Handle(NamedTuple):
    """A published chunk, valid while its owner or a peer's lock holds it."""

    segment: SegmentAddress
    #: index of its flag and stamp in the segment
    slot: int
    #: in the segment, bytes
    offset: int
    #: metadata for `dask_marsched.store.frames.from_frames`
    header: bytes
    #: of its frames, bytes
    lengths: tuple[int, ...]
    #: whether it is a plain array, which is deserialized in no time
    plain: bool
    #: frames in chunks of their own: position among all frames, ascending, handle and stamp
    apart: tuple[tuple[int, Handle, int], ...] = ()

    @classmethod
    def from_message(cls, message: Any) -> Handle:
        """Return the handle in a message; raises ValueError or TypeError if it is malformed."""
        segment, slot, offset, header, lengths, plain, apart = message
        parts = tuple((position, cls.from_message(part), stamp) for position, part, stamp in apart)
        return cls(SegmentAddress(*segment), slot, offset, header, tuple(lengths), plain, parts)

    def to_message(self) -> tuple[Any, ...]:
        """Return it as plain tuples."""
        parts = [(position, part.to_message(), stamp) for position, part, stamp in self.apart]
        return (tuple(self.segment), *self[1:-1], parts)


def create_segment(size: int) -> SegmentAddress:
    """Create an empty segment of ``size`` bytes for this user only; may raise OSError."""
    # Memory is used only for what is written. The caller closes the descriptor; the memory is freed
    # when no process has it open or mapped, however the processes ended.
    identity = uuid.uuid4().bytes
    fd = os.memfd_create("dask-marsched", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, size)
        # A file that shrinks would kill the processes that map it.
        fcntl.fcntl(
            fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        )
        os.pwrite(fd, _HEAD.pack(_MAGIC, identity), 0)
    except BaseException:
        os.close(fd)
        raise
    return SegmentAddress(os.getpid(), fd, identity)


def open_segment(address: SegmentAddress) -> int:
    """Open a segment of this host, with its own locks; OSError if its process has ended."""
    # O_NONBLOCK: a reused descriptor may be a pipe without a writer.
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK
    fd = os.open(f"/proc/{address.pid}/fd/{address.fd}", flags)
    try:
        if os.pread(fd, _HEAD.size, 0) != _HEAD.pack(_MAGIC, address.identity):
            raise OSError(f"descriptor {address.fd} of process {address.pid} is no longer it")
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_published(handle: Handle) -> bool:
    """Whether a chunk that is mapped here can still be mapped by others."""
    try:
        fd = open_segment(handle.segment)
    except OSError:
        return False
    try:
        return os.pread(fd, 1, FLAGS_OFFSET + handle.slot) == b"\x01"
    finally:
        os.close(fd)


def mark_owned(fd: int) -> None:
    """Mark a segment as owned by this process, until it ends or has closed it; raises OSError."""
    file_ranges.is_unread(fd, 0, 1)  # fails if the kernel lacks these locks
    file_ranges.lock_read(fd, 0, 1)


def has_owner(fd: int) -> bool:
    """Whether a segment is owned by a process that lives, or a fork of it; raises OSError."""
    return file_ranges.is_locked(fd, 0, 1)


def read_places(fd: int) -> NDArray[np.int64]:
    """Return offset and size of each extent by slot, zeros for one that is not used."""
    found = os.pread(fd, DATA_OFFSET - PLACES_OFFSET, PLACES_OFFSET)
    return np.frombuffer(found, np.int64).reshape(-1, 2)


def discard(fd: int, slot: int, offset: int, size: int) -> bool:
    """Return the memory of an extent that has no owner and no readers; False if it has some."""
    if not file_ranges.lock_unread(fd, offset, size):
        return False
    try:
        # Whoever finds the chunk under a lock of its own sees that it is gone.
        os.pwrite(fd, bytes(1), FLAGS_OFFSET + slot)
        os.pwrite(fd, bytes(STAMP.size), STAMPS_OFFSET + STAMP.size * slot)
        os.pwrite(fd, bytes(16), PLACES_OFFSET + 16 * slot)
        file_ranges.punch(fd, offset, size)
    finally:
        file_ranges.unlock(fd, offset, size)
    return True


def read_stamp(fd: int, slot: int) -> int:
    """Return the stamp of the chunk in an extent, 0 for none."""
    stamp: int = STAMP.unpack(os.pread(fd, STAMP.size, STAMPS_OFFSET + STAMP.size * slot))[0]
    return stamp
