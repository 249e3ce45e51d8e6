"""Maps a file as shared memory that a forked process inherits as a private copy."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def _aligned_addresses(length: int) -> Iterator[int | None]:
    """Reserve addresses aligned to a large page for the block to use; yield the first, if any."""
    start = _libc.mmap(None, length + LARGE_PAGE, _NO_ACCESS, _PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if start == _FAILED:
        yield None
        return
    first = -(-start // LARGE_PAGE) * LARGE_PAGE
    before = first - start
    try:
        yield first
    finally:
        for at, size in (start, before), (first + length, LARGE_PAGE - before):
            if size:
                _libc.munmap(at, size)


def _map_aligned(length: int, how: int, fd: int) -> int:
    with _aligned_addresses(length) as first:
        if first is not None:
            how |= _MAP_FIXED
        address: int = _libc.mmap(first, length, _ACCESS, how, fd, 0)
        return address


class SharedMemory(mmap.mmap):
    """A shared mapping of a file, whose descriptor it owns and closes.

    `copy` and `aside` are addresses of two more mappings, private and shared, that parts of this
    one are exchanged with (see `_numpy_memory.c`); 0 if the kernel cannot. Raises OSError if the
    kernel refuses; the caller then still owns the descriptor.
    """

    fd: int
    address: int
    copy = aside = 0

    def __new__(cls, fd: int, length: int) -> SharedMemory:
        """Map the file at an address aligned to a large page, if the kernel allows."""
        unaligned: list[SharedMemory] = []
        try:
            while len(unaligned) < _ATTEMPTS:
                with _aligned_addresses(length) as first:
                    if first is not None:
                        _libc.munmap(first, length)  # the kernel chooses the highest gap that fits
                    made = super().__new__(cls, fd, length)
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
