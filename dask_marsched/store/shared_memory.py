"""A file in memory, as all see it who map it; but a forked process gets it for itself.

Fork copies everything but shared mappings: arrays that were made in one would be the same in
parent and child, and each would see what the other one writes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

import numpy as np

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
_FAILED = ctypes.c_void_p(-1).value
_MAP_NORESERVE, _MREMAP_MAYMOVE, _MREMAP_FIXED = 0x4000, 1, 2


class SharedMemory(mmap.mmap):
    """A shared mapping of a file.

    Parameters
    ----------
    fd : int
        Descriptor of the file. It is this object's from now on, and closed with it.
    length : int
        Bytes of it that are mapped.

    Raises
    ------
    OSError
        If the kernel does not map it; the descriptor is still the caller's.
    """

    fd: int

    def __new__(cls, fd: int, length: int) -> SharedMemory:  # noqa: D102
        made = super().__new__(cls, fd, length)
        made.fd = fd
        _mapped.add(made)
        return made

    def make_private(self) -> None:
        """Show the file as it is, and write to it no more: pages that are written to are copied.

        Pages that are not written to go on showing what others write to the file.
        """
        whole = np.frombuffer(self, np.uint8)
        address, length = whole.ctypes.data, whole.nbytes
        access = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE | _MAP_NORESERVE
        # Elsewhere first: where that fails, nothing is lost.
        private = _libc.mmap(None, length, access, flags, self.fd, 0)
        how = _MREMAP_MAYMOVE | _MREMAP_FIXED
        if private == _FAILED or _libc.mremap(private, length, length, how, address) == _FAILED:
            # That a write kills the process is better than that it changes what is not its own.
            _libc.mprotect(address, length, mmap.PROT_READ)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)
            self.fd = -1  # where a cycle ends, other finalizers may come later


_mapped: weakref.WeakSet[SharedMemory] = weakref.WeakSet()


def _make_all_private() -> None:
    for memory in list(_mapped):
        memory.make_private()


os.register_at_fork(after_in_child=_make_all_private)
