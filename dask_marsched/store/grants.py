"""Extents of an arena in which NumPy makes its arrays: to publish these, nothing is copied.

Which of them an array gets is decided by compiled code (`_numpy_memory.c`), which NumPy asks for
memory. Where that was not compiled there are no grants, and what is published is copied.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING

try:
    from dask_marsched.store import _numpy_memory as native
except ImportError:  # there was no compiler where the package was built
    native = None  # type: ignore[assignment]  # a module, or none: mypy has no such type

from dask_marsched.store.extents import Extent
from dask_marsched.store.mapping import is_modified

if TYPE_CHECKING:
    from dask_marsched.store.shared_memory import SharedMemory

#: Arrays of fewer bytes are copied in less time than is lost where they lie apart.
LEAST = 256 * 1024
_POPULATE_WRITE = 23  # of Linux 5.14; older ones find the pages one by one
_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def is_available() -> bool:
    """Tell whether arrays can be made in an arena."""
    return native is not None


def make_arrays_here() -> None:
    """Have the code that runs in this context, and in copies of it, make its arrays in grants.

    Each array that finds no grant of its size is made as always, and its size is noted down.
    """
    if native is not None:
        native.allocate_here(LEAST)


def sizes_wanted() -> list[int]:
    """Return sizes, bytes, of grants that were taken, or not there, since the last call."""
    return native.sizes_wanted() if native is not None else []


def private_parts(memory: mmap.mmap) -> list[tuple[int, int]]:
    """Return address and length of the parts of an arena's memory that show writes to nobody."""
    return native.private_parts(memory) if native is not None else []


class Grants:
    """The extents of one arena that were granted. Not thread-safe.

    Parameters
    ----------
    memory
        The arena's memory, which shows what peers see. Arrays that were made in it keep it.

    Attributes
    ----------
    nbytes : int
        Bytes of memory in grants that nothing was published in.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._first, self._end = memory.address, memory.address + len(memory)
        self.nbytes = 0
        self._granted: dict[int, Extent] = {}
        #: Those that something was published in, as long as the array is there that was made there.
        self._taken: dict[Extent, int] = {}
        self._turns: dict[int, int] = {}

    def add(self, extent: Extent) -> bool:
        """Grant an extent, as far as it is filled; return False if it cannot be.

        Its memory is there; that its pages are mapped as well takes a moment.
        """
        memory = self._memory
        if native is None or not memory.copy:
            return False
        _libc.madvise(self._first + extent.offset, extent.filled, _POPULATE_WRITE)
        part = memoryview(self._memory)[extent.offset : extent.offset + extent.filled]
        number = native.grant(memory, part, memory.copy - self._first, memory.aside - self._first)
        if number < 0:
            return False
        self._granted[number] = extent
        self.nbytes += extent.filled
        return True

    @property
    def waiting(self) -> int:
        """Bytes of memory in grants that are no array's yet, or no more."""
        return native.waiting(self._memory) if native is not None else 0

    @property
    def largest(self) -> int:
        """Bytes of memory in the largest of those that nothing was published in."""
        return max((extent.filled for extent in self._granted.values()), default=0)

    def can_take(self, address: int, nbytes: int) -> bool:
        """Tell whether an array was made in an extent that can be taken."""
        return self._is_here(address) and native.can_take(address, nbytes)

    def _is_here(self, address: int) -> bool:
        return native is not None and self._first <= address < self._end

    def take(self, address: int, nbytes: int) -> Extent | None:
        """Return the extent of an array, to be published in; None if it was not made in one.

        What is written to the array from now on is seen by this process only. The extent is not
        granted again. One more than twice as long as the array is none.
        """
        if not self._is_here(address):
            return None
        number = native.take(address, nbytes)
        if number < 0:
            return None
        extent = self._granted.pop(number)
        self.nbytes -= extent.filled
        self._taken[extent] = number
        return extent

    def is_used(self, extent: Extent) -> bool:
        """Tell whether the array is still there that was made in an extent that was taken."""
        number = self._taken.get(extent)
        if number is None:
            return False
        # Only then: while the array is there, anybody may write to it.
        if not native.has_ended(number) or not native.forget(
            number, self._memory, not is_modified(self._first + extent.offset, extent.filled)
        ):
            return True
        del self._taken[extent]
        return False

    def withdraw(self, *, unneeded: bool = False) -> list[Extent]:
        """Return the extents that are no array's; they are granted no more.

        Parameters
        ----------
        unneeded
            Only those that have been no array's since the last call of this kind.
        """
        found = []
        before, turns = self._turns, {}
        for number in list(self._granted):
            turn = turns[number] = native.turn(number)
            if unneeded and before.get(number) != turn:
                continue
            if native.withdraw(number, self._memory):
                found.append(self._let_go(number))
                turns.pop(number)
        if unneeded:
            self._turns = turns
        return found

    def withdraw_oldest(self, nbytes: int) -> list[Extent]:
        """Return as many as take ``nbytes`` bytes, those first that were no array's for longest."""
        found = []
        for number in sorted(self._granted, key=native.turn) if nbytes > 0 else ():
            if native.withdraw(number, self._memory):
                found.append(self._let_go(number))
                nbytes -= found[-1].filled
            if nbytes <= 0:
                break
        return found

    def retire(self) -> list[Extent]:
        """Return the extents that are no array's any more; nothing is granted from here on.

        Arrays keep their memory, and that goes with them whether or not anybody calls this again.
        """
        if native is None:
            return []
        native.retire(self._memory)
        ended = [n for n in self._granted if native.forget(n, self._memory, False)]
        return [self._let_go(number) for number in ended]

    def _let_go(self, number: int) -> Extent:
        extent = self._granted.pop(number)
        self.nbytes -= extent.filled
        return extent
