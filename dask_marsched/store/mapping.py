"""Maps parts of a file privately: writes stay in this process. Keeps old mappings for reuse."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_marsched.store.releases import Releases

# PyDLL keeps the interpreter lock: to get it back from busy threads would take longer than a call.
_libc = ctypes.PyDLL(None, use_errno=True)
_libc.mmap.restype = _libc.memcpy.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64),
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value

#: Largest copy that keeps the interpreter lock, bytes: half a millisecond.
COPIED_AT_ONCE = 8 * 1024 * 1024

#: Alignment of frames in a file, bytes, for vectorised code.
ALIGNMENT = 64
# Flags in an entry of /proc/self/pagemap
_PRESENT, _SWAPPED, _OF_FILE = (np.uint64(1 << bit) for bit in (63, 62, 61))
#: Smallest mapping worth keeping, bytes.
_LEAST_KEPT = 256 * 1024
#: Upper bound on the mappings kept; a process may have 65530 in all.
_MOST_KEPT = 256


def frame_offsets(lengths: Sequence[int]) -> tuple[list[int], int]:
    """Return the offsets of frames of these lengths, and the length of all, bytes."""
    offsets, end = [], 0
    for length in lengths:
        # No padding before an empty frame: a file that ends with one would be too short to read.
        start = -(-end // ALIGNMENT) * ALIGNMENT if length else end
        offsets.append(start)
        end = start + length
    return offsets, end


def copy(into: NDArray[np.uint8], source: NDArray[np.uint8]) -> None:
    """Copy bytes between two contiguous arrays of the same length."""
    if source.nbytes <= COPIED_AT_ONCE:
        _libc.memcpy(into.ctypes.data, source.ctypes.data, source.nbytes)
    else:
        np.copyto(into, source)


@lru_cache(maxsize=1)
def _pagemap(pid: int) -> int:
    # By process: a forked one needs its own.
    return os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)


def is_modified(address: int, length: int) -> bool:
    """Whether a private mapping was written to; True if the kernel does not tell."""
    # A modified page is an anonymous copy, and no longer one of the file.
    first = address // mmap.PAGESIZE
    n_pages = -(-length // mmap.PAGESIZE)
    try:
        entries = os.pread(_pagemap(os.getpid()), 8 * n_pages, 8 * first)
    except OSError:
        return True
    if len(entries) != 8 * n_pages:
        return True
    flags = np.frombuffer(entries, np.uint64)
    return bool(np.any((flags & (_PRESENT | _SWAPPED) != 0) & (flags & _OF_FILE == 0)))


def _map(fd: int, offset: int, length: int) -> int:
    flags, access = mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE
    # `mmap.mmap` would keep a file descriptor per mapping, and thousands would exhaust them.
    address: int = _libc.mmap(None, length, access, flags, fd, offset)
    if address == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, f"cannot map {length} bytes: {os.strerror(error)}")
    return address


class Mapping:
    """A private (copy-on-write) mapping of a part of a file, which each view of it keeps."""

    __slots__ = ("__weakref__", "_releases", "address", "length")

    def __init__(self, address: int, length: int, releases: Releases) -> None:
        self.address = address
        self.length = length
        self._releases = releases

    @property
    def __array_interface__(self) -> dict[str, Any]:
        # NumPy makes this object the base of all views.
        return {
            "data": (self.address, False),
            "shape": (self.length,),
            "typestr": "|u1",
            "version": 3,
        }

    def frames(self, lengths: Sequence[int]) -> list[memoryview]:
        """Return writeable views of the frames laid out by `frame_offsets`, which keep it."""
        whole = np.asarray(self)
        offsets, _ = frame_offsets(lengths)
        return [whole[o : o + n].data for o, n in zip(offsets, lengths, strict=True)]

    def modified(self) -> bool:
        """Whether anything was written to it; see `is_modified`."""
        return is_modified(self.address, self.length)


def _unmap(address: int, length: int) -> None:
    _libc.munmap(address, length)


class MappingPool:
    """Maps parts of one file privately, and keeps the mappings for reuse. Thread-safe.

    A recycled chunk lies at the same place, so that an unmodified old mapping shows it at once; a
    new one takes longer to fault in than a copy. Kept mappings keep an unnamed file in existence.
    """

    def __init__(self, releases: Releases) -> None:
        # By offset: address and length. Changed only in atomic steps.
        self._waiting: dict[int, tuple[int, int]] = {}
        self._releases = releases
        self._closed = False

    @property
    def nbytes(self) -> int:
        """Bytes of addresses kept."""
        return sum(length for _, length in list(self._waiting.values()))

    def map(self, fd: int, offset: int, length: int, keep: object) -> Mapping:
        """Map a part of a file until the last view has ended; raises OSError if the kernel refuses.

        `offset` is a multiple of a page, `length` not 0, bytes; `fd` may be closed afterwards.
        `keep` lives until the last view has ended, so that this part does not change.
        """
        found = self._waiting.pop(offset, None)
        if found is not None and found[1] < length:
            _unmap(*found)
            found = None
        # A kept mapping may be longer, and an earlier user may have written anywhere in it.
        place = found or (_map(fd, offset, length), length)
        mapping = Mapping(place[0], length, self._releases)
        self._releases.at_end_of(mapping, self._take_back, offset, place, keep, in_child=True)
        return mapping

    def close(self) -> None:
        """Keep no mappings from now on: unmap those kept, and those that come back later."""
        self._closed = True
        while self._waiting:
            self._drop_one()

    def _take_back(self, offset: int, place: tuple[int, int], keep: object) -> None:
        """Keep an unused mapping, or unmap it."""
        # A modified mapping would show its changes to the next user.
        if self._closed or place[1] < _LEAST_KEPT or is_modified(*place):
            _unmap(*place)
            return
        if self._waiting.setdefault(offset, place) is not place:
            _unmap(*place)
        while len(self._waiting) > (0 if self._closed else _MOST_KEPT):
            self._drop_one()

    def _drop_one(self) -> None:
        try:
            found = self._waiting.pop(next(iter(self._waiting)), None)
        except (StopIteration, RuntimeError):  # another thread was faster
            return
        if found is not None:
            _unmap(*found)
