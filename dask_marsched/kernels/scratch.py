"""Provides working space to the threads that evaluate kernels."""

from __future__ import annotations

import threading

import numpy as np

_ALIGNMENT = 64


class Scratch(threading.local):
    """One piece of memory per thread, which grows to the largest request so far."""

    nbytes = -1
    start = 0

    def address(self, nbytes: int) -> int:
        """Return the address of so many bytes, valid until this thread's next request."""
        if self.nbytes < nbytes:
            self._memory = None  # freed before a larger piece is allocated
            self._memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
            start: int = self._memory.__array_interface__["data"][0]
            self.start, self.nbytes = start + -start % _ALIGNMENT, nbytes
        return self.start
