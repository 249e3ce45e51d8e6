"""Which results are put into shared memory as soon as they are made."""

from __future__ import annotations

from collections import Counter

#: Bytes from which on results are mapped instead of sent: the least that has been timed.
LEAST_SHARED = 1 << 20
#: Results of a kind that neighbours must have asked for before any is shared unasked.
_LEAST_ASKED = 2
#: Share of a kind's results that must have been asked for. To publish one in vain costs a copy;
#: not to publish one costs the same copy, and whoever asks waits for it.
_SHARE = 0.5


class ShareModel:
    """Learns which kinds of operands have results that other processes of the host ask for.

    Results are asked for some time after they were made: the share of a kind lags behind, and an
    early one among many is not enough.
    """

    def __init__(self) -> None:
        self._made: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()

    def made(self, kind: str) -> None:
        """Take note of a result."""
        self._made[kind] += 1

    def asked(self, kind: str) -> None:
        """Take note that a neighbour asked for a result, for the first time for this one."""
        self._asked[kind] += 1

    def is_shared(self, kind: str) -> bool:
        """Whether a neighbour will ask for a result of this kind more likely than not."""
        asked = self._asked[kind]
        return asked >= _LEAST_ASKED and asked >= _SHARE * self._made[kind]
