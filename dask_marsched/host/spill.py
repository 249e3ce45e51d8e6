"""The tiers of a worker's results as the quota sees them, over distributed's `SpillBuffer`.

Distributed's own evicts while it stores or loads, on the event loop, whatever was used least
recently. Here results are evicted by key, in a thread, and when somebody says so; what is read
back stays on disk where there is no room for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dask.typing import Key
from distributed.spill import HandledError, SpillBuffer, SpilledSize

from dask_marsched.host.store import Store


class Tiers(Protocol):
    """What the quota needs of the mapping that holds a worker's results.

    Evicting and loading happen in threads, while the event loop reads, adds and deletes.
    """

    #: Asked before a result that was read from disk becomes one in memory again: (key, bytes).
    may_promote: Callable[[Key, int], bool]

    @property
    def held(self) -> int:
        """Bytes of the results in memory."""
        ...

    @property
    def resident(self) -> Mapping[Key, float]:
        """Bytes of each result in memory that can be evicted."""
        ...

    def is_spilled(self, key: Key) -> bool:
        """Whether a result is on disk only."""
        ...

    def load(self, key: Key) -> object:
        """Return a result that may be on disk; raise KeyError if there is none."""
        ...

    def evict_key(self, key: Key) -> int:
        """Move a result to disk; return its bytes in memory, -1 if that failed."""
        ...


class QuotaSpillBuffer(SpillBuffer):
    """A `SpillBuffer` as `Tiers`; instances come from `adopt` only."""

    may_promote: Callable[[Key, int], bool]
    stock_target: float

    @property
    def held(self) -> int:
        """Bytes of the results in memory."""
        return int(self.fast.total_weight)

    @property
    def resident(self) -> Mapping[Key, float]:
        """Bytes of each result in memory that can be evicted."""
        # A copy made in one step: threads evict meanwhile.
        return {k: w for k, w in list(self.fast.weights.items()) if self._may_be_evicted(k)}

    def _may_be_evicted(self, key: Key) -> bool:
        return key not in self.logged_pickle_errors

    def is_spilled(self, key: Key) -> bool:
        """Whether a result is on disk only."""
        return key not in self.fast and key in self.slow

    def load(self, key: Key) -> object:
        """Return a result that may be on disk; raise KeyError if there is none."""
        return self[key]

    def evict_key(self, key: Key) -> int:
        """Move a result to disk; return its bytes in memory, -1 if that failed."""
        try:
            with self._capture_metrics(), self._handle_errors(None):
                return int(self.fast.evict(key)[2])
        except HandledError:
            return -1
        except KeyError:  # released meanwhile
            return 0

    def slow_to_fast(self, key: Key) -> object:
        """Read a result from disk; it stays there unless it may be promoted."""
        sizes = self._slow_uncached.weight_by_key.get(key)
        if sizes is None or self.may_promote(key, sizes.memory):
            return super().slow_to_fast(key)
        with self.unlock():
            return self.slow[key]

    @property
    def spilled_total(self) -> SpilledSize:
        """Bytes on disk, as they were in memory and as they are there."""
        # distributed's running total is not made for threads that evict and load at once.
        sizes = list(self._slow_uncached.weight_by_key.values())
        return SpilledSize(sum(s.memory for s in sizes), sum(s.disk for s in sizes))


def adopt(data: Any, may_promote: Callable[[Key, int], bool]) -> Tiers | None:
    """Make `Tiers` of a worker's results in place, or None where they cannot be evicted.

    Parameters
    ----------
    data
        ``worker.data``: distributed's `SpillBuffer`, or our `Store`.
    may_promote
        Asked before a result that was read from disk becomes one in memory again.
    """
    if type(data) is SpillBuffer:
        data.__class__ = QuotaSpillBuffer
    elif not isinstance(data, Store):
        return None
    adopted: Any = data
    adopted.may_promote = may_promote
    adopted.stock_target = adopted.fast.n
    # Storing a result never evicts others on the event loop.
    adopted.fast.n = sys.maxsize
    return adopted  # type: ignore[no-any-return]


def give_back(data: Any) -> None:
    """Undo `adopt`."""
    if not isinstance(data, QuotaSpillBuffer | Store):
        return
    adopted: Any = data
    adopted.fast.n = adopted.stock_target
    del adopted.stock_target, adopted.may_promote
    if isinstance(data, Store):
        data.may_promote = lambda key, nbytes: True
    else:
        data._slow_uncached.total_weight = data.spilled_total
        data.__class__ = SpillBuffer  # type: ignore[assignment]
