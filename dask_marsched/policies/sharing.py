"""Decides which results are put into shared memory before anybody requests them.

These are results that peers will probably request, and, in case their worker dies, as many others
as a budget of time allows.
"""

from __future__ import annotations

from collections import Counter

#: Least bytes of results that are mapped instead of sent, the smallest size measured.
LEAST_SHARED = 1 << 20
#: Least requests before a kind is shared in advance: its share lags, as requests follow results.
_LEAST_ASKED = 2
#: Least share of a kind's results that were requested. A needless publication costs a copy; a
#: missing one costs the same copy while the requester waits.
_SHARE = 0.5
#: Kinds that are remembered.
_MOST_KINDS = 4096


class ShareModel:
    """Learns which kinds of results are requested by other processes of the host."""

    def __init__(self) -> None:
        self._made: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()

    def made(self, kind: str) -> None:
        """Record a result."""
        if len(self._made) >= _MOST_KINDS and kind not in self._made:
            self._made.clear()
            self._asked.clear()
        self._made[kind] += 1

    def asked(self, kind: str) -> None:
        """Record the first request of a neighbour for a result."""
        self._asked[kind] += 1

    def is_shared(self, kind: str) -> bool:
        """Whether a neighbour will more likely than not request a result of this kind."""
        asked = self._asked[kind]
        return asked >= _LEAST_ASKED and asked >= _SHARE * self._made[kind]


_SHARE_OF_TIME = 0.02  #: Share of the operands' time that may be spent on retaining results.
_EACH = 0.0002  #: Seconds to retain a result, on the worker and on the scheduler that records it.
_COPIED = 2e9  #: Bytes copied in a second into pages that the kernel has to clear first.
_AT_ONCE = 0.1  #: Initial and largest budget in seconds.


class RetentionBudget:
    """Bounds the time spent on retaining results in case their worker dies.

    Durations do not tell which results are expensive to lose: the last step of a reduction is
    quick, but all its inputs are gone. So as many are retained as fit into a share of the time.
    """

    def __init__(self) -> None:
        self._left = _AT_ONCE

    def worked(self, seconds: float) -> None:
        """Record the duration of an operand."""
        self._left = min(_AT_ONCE, self._left + _SHARE_OF_TIME * seconds)

    def affords(self, copied: int = 0) -> bool:
        """Whether a result may be retained if that copies this many bytes."""
        # A copy that exceeds the budget empties it until operands refill it.
        return self._left >= min(_EACH + copied / _COPIED, _AT_ONCE)

    def filled(self, nbytes: int) -> None:
        """Record bytes allocated in small pages: filling those costs as much as a copy."""
        self._left -= nbytes / _COPIED

    def kept(self, copied: int = 0, seconds: float = 0.0) -> None:
        """Record a result that was retained: bytes copied, and measured seconds of that."""
        self._left -= _EACH + max(copied / _COPIED, seconds)
