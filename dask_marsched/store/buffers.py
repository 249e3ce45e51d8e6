"""Which results in memory share the same bytes.

A view keeps all of the array alive that it is of. The edges that `map_overlap` cuts off a chunk are
views: a thousandth of its bytes, and none of the chunk's memory is given back before they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from dask.typing import Key

from dask_marsched.store.mapping import Mapping

#: Views are copied, so that the rest goes, where all of them are at most this share of its bytes.
_COPIED = 1 / 8


@dataclass(frozen=True, slots=True)
class EvictionGroup:
    """Results that leave memory together, since either of them alone would free nothing.

    Attributes
    ----------
    leaving : tuple of Key
        What goes to the disk.
    staying : tuple of Key
        Small views that get memory of their own.
    nbytes : int
        Bytes that are freed.
    """

    leaving: tuple[Key, ...]
    staying: tuple[Key, ...]
    nbytes: int


@dataclass(slots=True)
class _Buffer:
    nbytes: int
    views: dict[Key, int] = field(default_factory=dict)


def buffer_of(value: object) -> tuple[int, int] | None:
    """Return the identity of the memory that an array keeps alive, and its bytes.

    None where that is not known: for what is no array, or one over a file or another's memory.
    """
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
    """The memory of results, each piece counted once. Not thread-safe.

    Attributes
    ----------
    hidden : int
        Bytes that are held beyond the sizes of the results; negative where results overlap.
    """

    def __init__(self) -> None:
        self.hidden = 0
        self._buffers: dict[int, _Buffer] = {}
        self._of: dict[Key, int] = {}

    def add(self, key: Key, value: object, weight: int) -> None:
        """Take note of a result in memory, of so many bytes; it was not there before."""
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
        """Take note that a result is not in memory any more, if it was."""
        number = self._of.pop(key, None)
        if number is None:
            return
        buffer = self._buffers[number]
        self.hidden += buffer.views.pop(key)
        if not buffer.views:
            # Its number may be another's from now on
            del self._buffers[number]
            self.hidden -= buffer.nbytes

    def __contains__(self, key: object) -> bool:
        return key in self._of

    def together(self) -> Iterator[EvictionGroup]:
        """Yield all of them, grouped by the memory that they keep alive."""
        for buffer in list(self._buffers.values()):
            views, room = buffer.views, buffer.nbytes * _COPIED
            staying: list[Key] = []
            for key in sorted(views, key=views.__getitem__):
                room -= views[key]
                if room < 0:
                    break
                staying.append(key)
            leaving = tuple(key for key in views if key not in staying)
            nbytes = buffer.nbytes - sum(views[key] for key in staying)
            yield EvictionGroup(leaving, tuple(staying), nbytes)
