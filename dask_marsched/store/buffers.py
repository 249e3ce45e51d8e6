"""Tracks which results in memory share a buffer, as a small view keeps its whole base alive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from dask.typing import Key

from dask_marsched.policies.eviction import Resident
from dask_marsched.store.mapping import Mapping

#: Views are copied to free their base if all of them take at most this share of its bytes.
_COPIED = 1 / 8


@dataclass(slots=True)
class _Buffer:
    nbytes: int
    views: dict[Key, int] = field(default_factory=dict)


def buffer_of(value: object) -> tuple[int, int] | None:
    """Return the identity and the bytes of an array's buffer; None if it is unknown."""
    if type(value) is not np.ndarray or value.dtype.hasobject:
        return None
    base: object = value
    while True:
        if isinstance(base, np.ndarray) and base.base is not None:
            base = base.base
        elif isinstance(base, memoryview):
            base = base.obj
        else:
            break
    if type(base) is np.ndarray:
        return id(base), base.nbytes
    if isinstance(base, Mapping):
        return id(base), base.length
    if isinstance(base, bytes | bytearray):
        return id(base), len(base)
    return None


class Buffers:
    """The buffers of results, each counted once. Not thread-safe."""

    def __init__(self) -> None:
        #: bytes beyond the sizes of the results; negative if results overlap
        self.hidden = 0
        self._buffers: dict[int, _Buffer] = {}
        self._of: dict[Key, int] = {}

    def add(self, key: Key, value: object, weight: int) -> None:
        """Add a result in memory with its weight; it must be new."""
        found = buffer_of(value) if weight else None
        if found is None:
            return
        number, nbytes = found
        buffer = self._buffers.get(number)
        if buffer is None:
            buffer = self._buffers[number] = _Buffer(nbytes)
            self.hidden += nbytes
        buffer.views[key] = weight
        self._of[key] = number
        self.hidden -= weight

    def discard(self, key: Key) -> None:
        """Remove a result, if it is here."""
        number = self._of.pop(key, None)
        if number is None:
            return
        buffer = self._buffers[number]
        self.hidden += buffer.views.pop(key)
        if not buffer.views:
            # The id may be reused.
            del self._buffers[number]
            self.hidden -= buffer.nbytes

    def __contains__(self, key: object) -> bool:
        return key in self._of

    def together(self) -> Iterator[Resident]:
        """Yield the results, grouped by buffer, as they must leave memory to free anything."""
        for buffer in list(self._buffers.values()):
            views, room = buffer.views, buffer.nbytes * _COPIED
            smallest = sorted(views, key=views.__getitem__)
            totals = accumulate(views[key] for key in smallest)
            staying = tuple(key for key, n in zip(smallest, totals, strict=True) if n <= room)
            leaving = tuple(key for key in views if key not in staying)
            nbytes = buffer.nbytes - sum(views[key] for key in staying)
            yield Resident(leaving, nbytes, staying=staying)
