"""Grants extents of an arena to NumPy for its arrays, which then need no copy to be published."""

from __future__ import annotations

import mmap

from dask_marsched.store.extents import Extent
from dask_marsched.store.mapping import is_modified
from dask_marsched.store.shared_memory import SharedMemory, native

#: Copying a smaller array costs less than allocating it apart, bytes.
LEAST_NBYTES = 256 * 1024
#: Enough for some temporary arrays that are too small for large pages, bytes. Memory for larger
#: ones is there as fast as from malloc, and what is reserved shows in the memory of all programs.
RESERVED_PER_THREAD = 4 * 1024 * 1024


def make_arrays_here(spare: int = RESERVED_PER_THREAD) -> None:
    """Let code in this context allocate arrays in grants; at most ``spare`` bytes stay reserved."""
    # Without a matching grant an array is allocated as usual, and its size is recorded.
    if native is not None:
        native.allocate_here(LEAST_NBYTES, spare)


def sizes_wanted() -> list[int]:
    """Return the sizes of grants, in bytes, taken or missed since the last call."""
    return native.sizes_wanted() if native is not None else []


def filled() -> int:
    """Return the bytes of small pages ever filled for granted arrays."""
    # Large pages are not counted: filling them costs no more than malloc.
    return native.filled() if native is not None else 0


def fill(memory: mmap.mmap, fd: int, offset: int, nbytes: int) -> bool:
    """Fill a part of an arena with memory; return whether it is there."""
    return native is not None and native.fill(memoryview(memory)[offset:][:nbytes], fd, offset)


class Grants:
    """The granted extents of one arena. Arrays in them keep its memory alive. Not thread-safe."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._first, self._end = memory.address, memory.address + len(memory)
        #: bytes in grants that nothing was published in
        self.nbytes = 0
        self._granted: dict[int, Extent] = {}
        #: Published extents whose arrays still exist.
        self._taken: dict[Extent, int] = {}
        self._turns: dict[int, int] = {}

    @property
    def are_possible(self) -> bool:
        """Whether this build and this kernel can make arrays in an arena."""
        return native is not None and bool(self._memory.copy)

    def add(self, extent: Extent, *, is_filled: bool) -> bool:
        """Grant an extent, filled or empty, if grants are possible; return whether it succeeded."""
        memory = self._memory
        part = memoryview(memory)[extent.offset : extent.offset + extent.filled]
        away = memory.copy - self._first, memory.aside - self._first
        number = native.grant(memory, part, *away, memory.fd, extent.offset, is_filled)
        if number < 0:
            return False
        self._granted[number] = extent
        self.nbytes += extent.filled
        return True

    @property
    def unused(self) -> int:
        """Bytes of addresses in unused grants."""
        return sum(self._unused())

    @property
    def filled(self) -> int:
        """Bytes of memory in unused grants."""
        return self._unused()[0]

    @property
    def empty(self) -> int:
        """Bytes in unused grants that have no memory yet."""
        return self._unused()[1]

    def _unused(self) -> tuple[int, int]:
        return native.waiting(self._memory) if native is not None else (0, 0)

    def can_take(self, address: int, nbytes: int) -> bool:
        """Whether an array was allocated in an extent that `take` would return."""
        return self._is_here(address) and native.can_take(address, nbytes)

    def _is_here(self, address: int) -> bool:
        return native is not None and self._first <= address < self._end

    def take(self, address: int, nbytes: int) -> Extent | None:
        """Return the extent of an array, of at most twice its size, to publish it; or None."""
        # Later writes to the array are private to this process. The extent is not granted again.
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
        """Whether the array that was allocated in a published extent still exists."""
        number = self._taken.get(extent)
        if number is None:
            return False
        # Checked only when the array has ended: until then anybody may write to it.
        if not native.has_ended(number) or not native.forget(
            number, self._memory, not is_modified(self._first + extent.offset, extent.filled)
        ):
            return True
        del self._taken[extent]
        return False

    def withdraw(self, *, unneeded: bool = False) -> list[tuple[Extent, bool]]:
        """Withdraw unused grants; return each extent, and whether it is filled."""
        # With `unneeded`, only those that have been unused since the last such call.
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
        """Withdraw at least ``nbytes`` bytes of unused grants, those unused for longest first."""
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
        """Grant nothing more; return the extents whose arrays have ended."""
        # Arrays keep their memory, and release it without another call of this.
        if native is None:
            return []
        native.retire(self._memory)
        ended = [n for n in self._granted if native.forget(n, self._memory, False)]
        return [self._let_go(number) for number in ended]

    def _let_go(self, number: int) -> Extent:
        extent = self._granted.pop(number)
        self.nbytes -= extent.filled
        return extent
