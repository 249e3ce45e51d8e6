"""Which chunk leaves memory first: the one that is needed last."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import zict
from dask.typing import Key
from zict.common import NoDefault, locked, nodefault

#: When a key is needed next: the greater, the later; None if that is not known.
NextUse = Callable[[Key], Any]

# Most keys looked at to find one: an eviction takes time in proportion.
_CANDIDATES = 256


class NeededLastFirst(zict.LRU[Key, object]):
    """`zict.LRU` that evicts by the order of use, where that is known.

    Keys of which it is not known go first, the least recently used one of them first of all. Keys
    that weigh nothing go last: evicting them frees nothing.

    Attributes
    ----------
    next_use : callable, optional
        Must not raise; called under the lock, from any thread.
    """

    next_use: NextUse | None = None

    def evict(
        self, key: Key | NoDefault = nodefault
    ) -> tuple[Key, object, float] | tuple[None, None, float]:
        """Evict a key, or the one that is needed last (see `zict.LRU.evict`)."""
        if key is nodefault and not self.heavy:
            key = self._needed_last()
        return super().evict(key)

    @locked
    def _needed_last(self) -> Key | NoDefault:
        chosen: Key | NoDefault = nodefault
        latest: Any = None
        spare: Key | NoDefault = nodefault
        for key in islice(self.order, _CANDIDATES):
            if key in self._cancel_evict:  # another thread is at it
                continue
            if not self.weights[key]:
                if spare is nodefault:
                    spare = key
                continue
            use = self.next_use(key) if self.next_use is not None else None
            if use is None:
                return key
            if latest is None or use > latest:
                chosen, latest = key, use
        return spare if chosen is nodefault else chosen
