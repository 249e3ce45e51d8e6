"""Which results are put into shared memory before anybody asks for them."""

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


#: Share of the time that operands take which may go into keeping their results for others.
_UPKEEP = 0.05
#: What it takes to keep a result, seconds: here, and on the scheduler that is told of it in the
#: message that brings the result.
_EACH = 0.0002
#: Bytes copied in a second, into memory that has to be emptied first.
_COPIED = 2e9
#: Seconds that may be spent before anything was computed, or after much was.
_AT_ONCE = 0.1


class Upkeep:
    """Bounds the time for results that are kept only in case their worker dies.

    What an operand took to compute says little of what its loss would cost: the last one of a
    reduction is small and quick, and all that it was made from is gone. So all are kept as long as
    that is little beside the work, and where it would not be, as many as can be.
    """

    def __init__(self) -> None:
        self._left = _AT_ONCE

    def worked(self, seconds: float) -> None:
        """Take note of an operand that has run."""
        self._left = min(_AT_ONCE, self._left + _UPKEEP * seconds)

    def affords(self, copied: int = 0) -> bool:
        """Whether a result may be kept for which so many bytes have to be copied.

        What takes longer than may be spent at once is followed by nothing until it is made up for.
        """
        return self._left >= min(_EACH + copied / _COPIED, _AT_ONCE)

    def filled(self, nbytes: int) -> None:
        """Take note of memory in small pages that arrays got which may be kept.

        It costs as much as a copy. malloc has it for a seventh of that, from large pages.
        """
        self._left -= nbytes / _COPIED

    def kept(self, copied: int = 0) -> None:
        """Take note of a result that was kept."""
        self._left -= _EACH + copied / _COPIED
