"""Mappings that wait to be used again.

The pages of a new mapping are found one after the other as they are looked at, which takes longer
than to copy them; and to unmap them takes a quarter of that again. Memory that is recycled for
another chunk is at the same place of the same file: a mapping of it that nobody has written to
shows the new chunk at once.
"""

from __future__ import annotations

from dask_marsched.store.mapping import Mapping, unmap

#: Below this a new mapping costs less than what is to be known of an old one, bytes.
_LEAST_KEPT = 256 * 1024
#: Most mappings that wait. A process may have 65530 in all.
_MOST_KEPT = 256


class MappingPool:
    """Private mappings of parts of one file, each kept after its last view to be used again.

    They hold no memory of their own but the tables of pages, a five-hundredth of what they map;
    but they keep a file without a name from being gone. Thread-safe.
    """

    def __init__(self) -> None:
        # By offset: address and length. Changed in single steps only, since finalizers do.
        self._waiting: dict[int, tuple[int, int]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def nbytes(self) -> int:
        """Bytes of addresses that wait."""
        return sum(length for _, length in list(self._waiting.values()))

    def map(self, fd: int, offset: int, length: int, keep: object) -> Mapping:
        """Return a mapping, an old one if there is one (see `Mapping`).

        Raises
        ------
        OSError
            If the kernel does not map it.
        """
        found = self._waiting.pop(offset, None)
        if found is not None and found[1] < length:
            unmap(*found)
            found = None
        return _PooledMapping(self, fd, offset, length, keep, found)

    def close(self) -> None:
        """Unmap what waits, and whatever comes back later."""
        self._closed = True
        while self._waiting:
            self._drop_one()

    def take_back(self, mapping: Mapping, offset: int) -> None:
        """Keep a mapping that nobody uses any more, or unmap it. Called by finalizers."""
        place = mapping.address, mapping.length
        # What was written to it is to be seen by nobody.
        if self._closed or mapping.length < _LEAST_KEPT or mapping.modified():
            unmap(*place)
            return
        if self._waiting.setdefault(offset, place) is not place:
            unmap(*place)
        while len(self._waiting) > (0 if self._closed else _MOST_KEPT):
            self._drop_one()

    def _drop_one(self) -> None:
        try:
            found = self._waiting.pop(next(iter(self._waiting)), None)
        except (StopIteration, RuntimeError):  # another thread was at it
            return
        if found is not None:
            unmap(*found)


class _PooledMapping(Mapping):
    """A mapping that goes back to a pool."""

    __slots__ = ("_offset", "_pool", "_reserved")  # the last: bytes of the mapping itself

    def __init__(
        self,
        pool: MappingPool,
        fd: int,
        offset: int,
        length: int,
        keep: object,
        found: tuple[int, int] | None,
    ) -> None:
        self._pool = pool
        self._offset = offset
        if found is None:
            super().__init__(fd, offset, length, keep)
            self._reserved = length
        else:
            # It may be longer than what is in it now
            self.address, self._reserved = found
            self.length, self.keep = length, keep

    def __del__(self) -> None:
        if self.length:
            self.length = self._reserved  # all of it may have been written to at some time
            self._pool.take_back(self, self._offset)
            self.length = 0
        self.keep = None
