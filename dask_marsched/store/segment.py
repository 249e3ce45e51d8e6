"""A piece of memory without a name, shared by processes that are told where it is.

Layout: a page of head, a byte for each extent that tells peers whether its owner still holds it,
a number for each that tells what is in it, then the extents.
"""

from __future__ import annotations

import fcntl
import os
import struct
import uuid
from typing import Any, NamedTuple

from dask_marsched.store.extents import PAGE

#: What identifies the layout; another one needs another name.
_MAGIC = b"dask-marsched\x00\x00\x02"
_HEAD = struct.Struct("=16s16s")
#: Where the owner's charge is (see `dask_marsched.store.charge`).
CHARGE_OFFSET = 64
#: Where the flags of the extents are, and how many there may be.
FLAGS_OFFSET = PAGE
SLOTS = 15 * PAGE
#: Where the stamps are: of each chunk its own number as long as its owner holds it, else 0.
STAMPS_OFFSET = FLAGS_OFFSET + SLOTS
STAMP = struct.Struct("=Q")
#: Where the extents begin, bytes.
DATA_OFFSET = STAMPS_OFFSET + STAMP.size * SLOTS


class SegmentAddress(NamedTuple):
    """Where a segment is: a descriptor of a process of this host, and the segment's identity."""

    pid: int
    fd: int
    identity: bytes


class Handle(NamedTuple):
    """Where a published chunk is. It stays there while its owner, or a peer's lock, holds it.

    Attributes
    ----------
    segment : SegmentAddress
    slot : int
        Which flag of the segment tells that the owner still holds it.
    offset : int
        Where it begins, bytes.
    header : bytes
        How to make an object of the frames again (see `dask_marsched.store.frames`).
    lengths : tuple of int
        Lengths of its frames, bytes.
    plain : bool
        It is an array and nothing else: made of its frames in no time.
    apart : tuple
        Frames that are chunks of their own: the place of each among all frames, ascending, its
        handle and its stamp.
    """

    segment: SegmentAddress
    slot: int
    offset: int
    header: bytes
    lengths: tuple[int, ...]
    plain: bool
    apart: tuple[tuple[int, Handle, int], ...] = ()

    @classmethod
    def from_message(cls, message: Any) -> Handle:
        """Return a handle that came as plain tuples.

        Raises
        ------
        ValueError, TypeError
            If it is none.
        """
        segment, slot, offset, header, lengths, plain, apart = message
        parts = tuple((position, cls.from_message(part), stamp) for position, part, stamp in apart)
        return cls(SegmentAddress(*segment), slot, offset, header, tuple(lengths), plain, parts)

    def of_parts(self, header: bytes, apart: tuple[tuple[int, Handle, int], ...]) -> Handle:
        """Return the handle of an object of which this is one chunk, and these are the others."""
        return self._replace(header=header, plain=False, apart=apart)

    def to_message(self) -> tuple[Any, ...]:
        """Return it as plain tuples."""
        parts = [(position, part.to_message(), stamp) for position, part, stamp in self.apart]
        return (tuple(self.segment), *self[1:-1], parts)


def create_segment(size: int) -> SegmentAddress:
    """Create an empty segment in this process, readable by this user only.

    Parameters
    ----------
    size : int
        Bytes of addresses. Memory is used for what is written only.

    Returns
    -------
    SegmentAddress
        Its descriptor is the caller's to close; the memory is gone when no process has it open
        or mapped any more, however the processes ended.

    Raises
    ------
    OSError
        If the system has no such memory.
    """
    identity = uuid.uuid4().bytes
    fd = os.memfd_create("dask-marsched", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, size)
        # A file that got shorter would kill whoever has it mapped.
        fcntl.fcntl(
            fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        )
        os.pwrite(fd, _HEAD.pack(_MAGIC, identity), 0)
    except BaseException:
        os.close(fd)
        raise
    return SegmentAddress(os.getpid(), fd, identity)


def open_segment(address: SegmentAddress) -> int:
    """Open a segment of a process of this host, and verify that it is the one that is meant.

    Returns
    -------
    int
        A descriptor of its own, with locks of its own.

    Raises
    ------
    OSError
        If it cannot be opened from here, or is another one: the process ended and its number was
        used again, or is that of another namespace.
    """
    # O_NONBLOCK: the number may be that of anything by now, also of a pipe nobody writes to
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK
    fd = os.open(f"/proc/{address.pid}/fd/{address.fd}", flags)
    try:
        if os.pread(fd, _HEAD.size, 0) != _HEAD.pack(_MAGIC, address.identity):
            raise OSError(f"descriptor {address.fd} of process {address.pid} is no longer it")
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_stamp(fd: int, slot: int) -> int:
    """Return the number of the chunk that an extent's owner holds there, 0 for none."""
    stamp: int = STAMP.unpack(os.pread(fd, STAMP.size, STAMPS_OFFSET + STAMP.size * slot))[0]
    return stamp
