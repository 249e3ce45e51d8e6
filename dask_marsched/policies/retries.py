"""Retries: what failed for a reason that another worker, or another moment, may not have."""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterable

#: Subclasses of ``OSError`` that say something about the program, not about the machine.
_LASTING = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
#: Seconds before an operand is tried again: time for a connection, or a disk, to come back. Each
#: further delay is twice as long, up to the longest.
_DELAY, _LONGEST = 1.0, 60.0


class RetryRule:
    """Says whether an operand that failed is tried again, and when.

    Parameters
    ----------
    most
        How often an operand is tried again for errors of the infrastructure; 0 for never.
    errors
        Names of exceptions that count as such. A built-in one stands for those derived from it
        too, but for files that are there, or are not, or may not be read: these are not cured
        by trying again.
    delay
        Seconds before the first time; each further one takes twice as long, a minute at most.
    """

    def __init__(self, most: int, errors: Iterable[str], delay: float = _DELAY) -> None:
        self.most = most
        self.delay = delay
        self._names = _with_derived(errors)

    def is_infrastructure(self, error: str) -> bool:
        """Whether an exception, given by its ``repr``, counts as one of the infrastructure."""
        name = error.partition("(")[0].strip()
        return name.rpartition(".")[2] in self._names

    def wait(self, error: str, tried: int) -> float:
        """Return after how many seconds to try again, infinity for never.

        Parameters
        ----------
        error
            The exception's ``repr``.
        tried
            How often the operand has been tried again already.
        """
        if tried >= self.most or not self.is_infrastructure(error):
            return math.inf
        # Not 2.0**tried at once: a thousandth retry is no overflow.
        return min(self.delay * 2.0 ** min(tried, 30), max(_LONGEST, self.delay))


def _with_derived(names: Iterable[str]) -> frozenset[str]:
    found = set(names)
    known = [v for v in vars(builtins).values() if isinstance(v, type)]
    errors = [v for v in known if issubclass(v, Exception)]
    for base in [error for error in errors if error.__name__ in found]:
        found.update(
            error.__name__
            for error in errors
            if issubclass(error, base) and not issubclass(error, _LASTING)
        )
    return frozenset(found)
