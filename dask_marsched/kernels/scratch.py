"""Working space of the threads that evaluate expressions."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

_ALIGNMENT = 64


class Scratch:
    """Memory of which each thread has a piece of its own, as large as it needed at most so far."""

    def __init__(self) -> None:
        self._own = threading.local()

    def address(self, nbytes: int) -> int:
        """Return the address of so many bytes, which are the thread's until it asks again."""
        own = self._own
        if getattr(own, "nbytes", -1) < nbytes:
            own.array = None  # before there is a larger one
            array = np.empty(nbytes + _ALIGNMENT, np.uint8)
            address: int = array.__array_interface__["data"][0]
            own.offset = -address % _ALIGNMENT
            own.address, own.array, own.nbytes = address + own.offset, array, nbytes
        found: int = own.address
        return found

    def arrays(self, length: int, dtypes: list[np.dtype[Any]]) -> list[np.ndarray[Any, Any]]:
        """Return arrays of a length in these bytes, one behind the other."""
        sizes = [-(-length * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT for dtype in dtypes]
        self.address(sum(sizes))
        found = []
        start: int = self._own.offset
        for size, dtype in zip(sizes, dtypes, strict=True):
            found.append(self._own.array[start : start + length * dtype.itemsize].view(dtype))
            start += size
        return found
