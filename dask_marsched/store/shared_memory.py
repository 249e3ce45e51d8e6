"""Maps a file as shared memory that a forked process inherits as a private copy."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Self

import numpy as np

from dask_marsched.store.extents import LARGE_PAGE

try:
    from dask_marsched.store import _numpy_memory as native
except ImportError:  # built without a compiler
    native = None  # type: ignore[assignment]  # a module, or None: mypy has no such type

__all__ = ["SharedMemory", "native"]

_libc = ctypes.CDLL(None)
_libc.mmap.restype = _libc.mremap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64),
)
_libc.mremap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t),
    *(ctypes.c_int, ctypes.c_void_p),
)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_MREMAP_MAYMOVE, _MREMAP_FIXED, _MREMAP_DONTUNMAP = 1, 2, 4
_NO_ACCESS = 0
_ATTEMPTS = 8  # to find aligned addresses
_ACCESS = mmap.PROT_READ | mmap.PROT_WRITE
_PRIVATE = mmap.MAP_PRIVATE | _MAP_NORESERVE


class _Addresses:
    """An unused range of addresses, aligned to a large page."""

    def __init__(self, length: int) -> None:
        nothing = _PRIVATE | mmap.MAP_ANONYMOUS
        self._length, self._size = length, length + LARGE_PAGE
        self._start = _libc.mmap(None, self._size, _NO_ACCESS, nothing, -1, 0)
        self.first = -(-self._start // LARGE_PAGE) * LARGE_PAGE if self._start != _FAILED else None

    def leave(self) -> None:
        """Free the range, so that the next mapping of its length lands there."""
        if self.first is not None:
            _libc.munmap(self.first, self._length)

    def close(self) -> None:
        """Free the addresses before and behind the range."""
        if self.first is not None:
            before, used = self.first - self._start, self._length
            for at, size in (self._start, before), (self.first + used, self._size - before - used):
                if size:
                    _libc.munmap(at, size)


def _map_aligned(length: int, how: int, fd: int) -> int:
    gap = _Addresses(length)
    try:
        if gap.first is not None:
            how |= _MAP_FIXED
        address: int = _libc.mmap(gap.first, length, _ACCESS, how, fd, 0)
        return address
    finally:
        gap.close()


class SharedMemory(mmap.mmap):
    """A shared mapping of a file, whose descriptor it owns and closes.

    `copy` and `aside` are addresses of two more mappings, private and shared, that parts of this
    one are exchanged with (see `_numpy_memory.c`); 0 if the kernel cannot. Raises OSError if the
    kernel refuses; the caller then still owns the descriptor.
    """

    fd: int
    address: int
    copy = aside = 0

    def __new__(cls, fd: int, length: int) -> Self:
        """Map the file at an address aligned to a large page, if the kernel allows."""
        unaligned: list[Self] = []
        try:
            while len(unaligned) < _ATTEMPTS:
                gap = _Addresses(length)
                gap.leave()  # the kernel chooses the highest gap that fits
                try:
                    made = super().__new__(cls, fd, length)
                finally:
                    gap.close()
                if np.frombuffer(made, np.uint8).ctypes.data % LARGE_PAGE == 0:
                    return made
                unaligned.append(made)  # it fills a higher gap that something unmapped has left
            return unaligned.pop()
        finally:
            for other in unaligned:
                other.close()

    def __init__(self, fd: int, length: int) -> None:
        self.fd = fd
        self.address = np.frombuffer(self, np.uint8).ctypes.data
        self._map_more(length)
        _mapped.add(self)

    def _map_more(self, length: int) -> None:
        copy, aside = (_map_aligned(length, how, self.fd) for how in (_PRIVATE, mmap.MAP_SHARED))
        how = _MREMAP_MAYMOVE | _MREMAP_FIXED | _MREMAP_DONTUNMAP
        page = mmap.PAGESIZE
        if (
            _FAILED not in (copy, aside)  # the address space may be exhausted
            # unsupported for files before Linux 5.13
            and _libc.mremap(self.address, page, page, how, aside) != _FAILED
        ):
            self.copy, self.aside = copy, aside
            return
        for address in {copy, aside} - {_FAILED}:
            _libc.munmap(address, length)

    def make_private(self) -> None:
        """Exchange the shared mapping for a private one, so that writes never reach the file."""
        # Unmodified pages still follow the file. Parts that are private already are left alone.
        start = self.address
        private = native.private_parts(self) if native is not None else []
        for address, length in sorted(private):
            self._make_private(start, address - start)
            start = address + length
        self._make_private(start, self.address + len(self) - start)

    def _make_private(self, address: int, length: int) -> None:
        if not length:
            return
        # Mapped elsewhere first, so that a failure loses nothing.
        offset = address - self.address
        private = _libc.mmap(None, length, _ACCESS, _PRIVATE, self.fd, offset)
        how = _MREMAP_MAYMOVE | _MREMAP_FIXED
        if private == _FAILED or _libc.mremap(private, length, length, how, address) == _FAILED:
            # Better that a write kills this process than that it changes its parent's data.
            _libc.mprotect(address, length, mmap.PROT_READ)

    def __del__(self) -> None:
        for address in {self.copy, self.aside} - {0}:
            _libc.munmap(address, len(self))
        if hasattr(self, "fd"):
            os.close(self.fd)
            self.fd = -1  # in a reference cycle other finalizers may run later


_mapped: weakref.WeakSet[SharedMemory] = weakref.WeakSet()


def _make_all_private() -> None:
    for memory in list(_mapped):
        memory.make_private()


# Else parent and child would see each other's writes to arrays allocated there.
os.register_at_fork(after_in_child=_make_all_private)
