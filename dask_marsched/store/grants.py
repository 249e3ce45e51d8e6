"""Extents of an arena in which NumPy makes its arrays: to publish these, nothing is copied.

Which of them an array gets is decided by compiled code (`_numpy_memory.c`), which NumPy asks for
memory. Where that was not compiled there are no grants, and what is published is copied.
"""

from __future__ import annotations

import mmap

from dask_marsched.store.extents import Extent
from dask_marsched.store.mapping import is_modified
from dask_marsched.store.shared_memory import SharedMemory, native

#: Arrays of fewer bytes are copied in less time than is lost where they lie apart.
LEAST = 256 * 1024
#: Bytes of memory that wait for the next arrays, for each thread that makes some: one temporary
#: array of the usual size of a chunk, or several smaller ones. More would be seen in the memory of
#: programs that hold little.
WAITING = 8 * 1024 * 1024


def is_available() -> bool:
    """Tell whether arrays can be made in an arena."""
    return native is not None


def make_arrays_here(spare: int = WAITING) -> None:
    """Have the code that runs in this context, and in copies of it, make its arrays in grants.

    Each array that finds no grant of its size is made as always, and its size is noted down.

    Parameters
    ----------
    spare
        Most bytes of memory that wait for the next arrays.
    """
    if native is not None:
        native.allocate_here(LEAST, spare)


def sizes_wanted() -> list[int]:
    """Return sizes, bytes, of grants that were taken, or not there, since the last call."""
    return native.sizes_wanted() if native is not None else []


def filled() -> int:
    """Return how many bytes of memory ever came in small pages with arrays made in grants.

    What comes in large ones takes no longer than malloc's.
    """
    return native.filled() if native is not None else 0


def fill(memory: mmap.mmap, fd: int, offset: int, nbytes: int) -> bool:
    """Have memory behind a part of an arena's; return whether it is there."""
    return native is not None and native.fill(memoryview(memory)[offset:][:nbytes], fd, offset)


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

    def add(self, extent: Extent, *, is_filled: bool) -> bool:
        """Grant an extent; return False if it cannot be.

        Parameters
        ----------
        extent
            As far as it counts as filled.
        is_filled
            Whether its memory is there; otherwise that comes with an array.
        """
        memory = self._memory
        if native is None or not memory.copy:
            return False
        part = memoryview(memory)[extent.offset : extent.offset + extent.filled]
        away = memory.copy - self._first, memory.aside - self._first
        number = native.grant(memory, part, *away, memory.fd, extent.offset, is_filled)
        if number < 0:
            return False
        self._granted[number] = extent
        self.nbytes += extent.filled
        return True

    @property
    def waiting(self) -> int:
        """Bytes of addresses in grants that are no array's yet, or no more."""
        return sum(self._waiting())

    @property
    def filled(self) -> int:
        """Bytes of memory among these."""
        return self._waiting()[0]

    @property
    def empty(self) -> int:
        """Bytes for which there is no memory yet."""
        return self._waiting()[1]

    def _waiting(self) -> tuple[int, int]:
        return native.waiting(self._memory) if native is not None else (0, 0)

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

    def withdraw(self, *, unneeded: bool = False) -> list[tuple[Extent, bool]]:
        """Return the extents that are no array's, and whether memory is there; no more granted.

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
            is_filled = native.withdraw(number, self._memory)
            if is_filled is not None:
                found.append((self._let_go(number), is_filled))
                turns.pop(number)
        if unneeded:
            self._turns = turns
        return found

    def withdraw_oldest(self, nbytes: int) -> list[tuple[Extent, bool]]:
        """Do so with as many as take ``nbytes`` bytes, those first that were unused for longest."""
        found = []
        for number in sorted(self._granted, key=native.turn) if nbytes > 0 else ():
            is_filled = native.withdraw(number, self._memory)
            if is_filled is not None:
                found.append((self._let_go(number), is_filled))
                nbytes -= found[-1][0].filled
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
