"""Evicts the chunk that is needed last, when data exceed the target or distributed has to spill.

With the quota on, `worker.evictor` evicts earlier, and chooses by `policies.eviction`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from itertools import islice
from typing import Any

import zict
from dask.typing import Key
from zict.common import NoDefault, locked, nodefault

from dask_marsched.store.buffers import Buffers
from dask_marsched.store.compact_views import compact
from dask_marsched.store.spill_tier import SpillTier

#: Returns when a key is needed next, greater for later, or None if unknown.
NextUse = Callable[[Key], Any]

# Upper bound on the keys compared per eviction.
_CANDIDATES = 256


class NextUseLRU(zict.LRU[Key, object]):
    """`zict.LRU` that evicts into a `SpillTier` by next use.

    Keys without a known next use go first, in LRU order; keys without weight go last. A key is in
    memory or in the tier, never in both: it moves under the lock, after its value was written
    outside of it, and only if the value is still the same.
    """

    #: called under the lock from any thread; must not raise
    next_use: NextUse | None = None
    #: called likewise with each key that leaves memory, to disk or for good
    gone: Callable[[Key], object] | None = None

    def __init__(
        self,
        n: float,
        tier: SpillTier,
        lock: threading.RLock,
        weight: Callable[[Key, object], float],
    ) -> None:
        super().__init__(n, {}, weight=weight)
        self.lock = lock
        #: a larger key goes to disk at once; if that fails, it is not stored
        self.most: float = math.inf
        self.buffers = Buffers()
        self._tier = tier
        self._leaving: set[Key] = set()

    def evict(
        self, key: Key | NoDefault = nodefault
    ) -> tuple[Key, object, float] | tuple[None, None, float]:
        """Evict a key, or the one needed last, if writing succeeds; KeyError if there is none."""
        with self.lock:
            if key is nodefault:
                key = self._needed_last()
            if key in self._leaving:  # another thread is evicting it
                return None, None, 0
            value = self.d[key]
            self._leaving.add(key)
            # If it cannot be written, others must still be tried.
            self.heavy.discard(key)
        try:
            entry = self._tier.write(key, value)
        finally:
            with self.lock:
                self._leaving.discard(key)
        with self.lock:
            if key not in self.d or self.d[key] is not value:
                return None, None, 0
            weight = self.weights[key]
            del self[key]
            self._tier.put(key, entry)
            return key, value, weight

    def settle(self, key: Key) -> None:
        """Evict down to the target after a key was added; raises if a write fails."""
        if self.weights.get(key, 0) > self.most:
            self.evict(key)
        try:
            self.evict_until_below_target()
        except Exception:
            if self.weights.get(key, 0) > self.n and key not in self.heavy:
                # The new key itself failed: evict the others instead.
                try:
                    while len(self.d) > 1:
                        self.evict()
                except Exception:
                    pass
            raise

    @locked
    def set_noevict(self, key: Key, value: object) -> None:
        """Store a key without evicting others (see `zict.LRU.set_noevict`)."""
        super().set_noevict(key, value)
        self.buffers.add(key, value, int(self.weights[key]))

    @locked
    def exchange(self, key: Key, old: object, new: object) -> None:
        """Replace a value by an equal one, if still there; the eviction order stays."""
        if key in self.d and self.d[key] is old:
            self.d[key] = new
            weight = self.weight(key, new)  # one of them may be a peer's memory
            self.total_weight += weight - self.weights[key]
            self.weights[key] = weight
            self.buffers.discard(key)
            self.buffers.add(key, new, int(weight))

    @locked
    def __delitem__(self, key: Key) -> None:
        super().__delitem__(key)
        self.buffers.discard(key)
        if self.gone is not None:
            self.gone(key)

    @locked
    def _needed_last(self) -> Key:
        for key in self.heavy or ():
            if key not in self._leaving:
                return key
        there = (key for key in self.order if key not in self._leaving)
        chosen: Key | NoDefault = nodefault
        latest: Any = None
        for key in islice((key for key in there if self.weights[key]), _CANDIDATES):
            use = self.next_use(key) if self.next_use is not None else None
            if use is None:
                return key
            if chosen is nodefault or use > latest:
                chosen, latest = key, use
        if chosen is nodefault:
            chosen = next((key for key in self.order if key not in self._leaving), nodefault)
        if chosen is nodefault:
            raise KeyError("evict(): nothing to evict")
        return chosen


class SpillingBuffer(zict.Buffer[Key, object]):
    """`zict.Buffer` of both tiers, for threads that store, read, delete and evict at once."""

    fast: NextUseLRU
    slow: SpillTier

    def __init__(self, tier: SpillTier, n: float, weight: Callable[[Key, object], float]) -> None:
        super().__init__({}, tier, n, weight)
        self.fast = NextUseLRU(n, tier, self.lock, weight)
        #: whether a key of this many bytes, read from disk, may move to memory
        self.may_promote: Callable[[Key, int], bool] = lambda key, nbytes: True

    def __setitem__(self, key: Key, value: object) -> None:
        self.set_noevict(key, value)
        self.fast.settle(key)

    @locked
    def set_noevict(self, key: Key, value: object) -> None:
        """Store a key without evicting others."""
        if key in self.slow:  # `zict` does without this look, by an exception for each new key
            del self.slow[key]
        self.fast.set_noevict(key, compact(value))

    def __getitem__(self, key: Key) -> object:
        """Return a value; one read from disk is promoted if allowed."""
        while True:
            with self.lock:
                if key in self.fast:
                    return self.fast[key]
                entry = self.slow.entries[key]
            value = self.slow.read(entry)
            with self.lock:
                if self.slow.entries.get(key) is not entry:
                    continue  # replaced, deleted or promoted in the meantime
                weight = self.weight(key, value)
                if weight > self.n or not self.may_promote(key, entry.weight.memory):
                    return value
                del self.slow[key]
                self.fast.set_noevict(key, value)
            self.fast.evict_until_below_target()
            return value

    @locked
    def __contains__(self, key: object) -> bool:
        return key in self.fast or key in self.slow
