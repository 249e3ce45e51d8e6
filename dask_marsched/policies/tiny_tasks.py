"""Decides which kinds of operands are so small that a worker runs many of them in a row."""

from __future__ import annotations

from dataclasses import dataclass

#: Mean seconds and bytes of a kind up to which it is tiny: below, messages and the change of
#: threads take longer than the operands themselves.
SHORT, SMALL = 0.005, 64 * 1024
#: Weight of the last operand in the means: a single slow one (0.3 s) makes its kind ordinary for
#: twenty operands.
_WEIGHT = 0.2
#: Kinds that are remembered.
_MOST_KINDS = 4096


@dataclass(slots=True)
class _Means:
    seconds: float
    nbytes: float


class TinyKinds:
    """Learns how long operands of each kind (a name) take, and how large their results are."""

    def __init__(self) -> None:
        self._means: dict[str, _Means] = {}

    def observe(self, kind: str, seconds: float, nbytes: float) -> None:
        """Record an operand that has run."""
        known = self._means.get(kind)
        if known is None:
            if len(self._means) >= _MOST_KINDS:
                self._means.clear()
            self._means[kind] = _Means(seconds, nbytes)
        else:
            known.seconds += _WEIGHT * (seconds - known.seconds)
            known.nbytes += _WEIGHT * (nbytes - known.nbytes)

    def is_tiny(self, kind: str) -> bool:
        """Return whether operands of a kind have run, fast and with small results."""
        known = self._means.get(kind)
        return known is not None and known.seconds < SHORT and known.nbytes <= SMALL
