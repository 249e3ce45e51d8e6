"""Decides which failed operands are retried, and after how long."""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterable

#: Subclasses of ``OSError`` that are caused by the program rather than the machine.
_LASTING = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
#: Seconds before the first retry, and at most: time for a connection or a disk to recover.
_DELAY, _LONGEST = 1.0, 60.0


class RetryRule:
    """Retries operands that failed for reasons of the infrastructure, `most` times each.

    `errors` are the names of such exceptions. A built-in one includes its subclasses, except errors
    about existing, missing or forbidden files, which a retry does not cure.
    """

    def __init__(self, most: int, errors: Iterable[str]) -> None:
        self.most = most
        self.delay = _DELAY  #: Seconds before the first retry.
        self._names = _with_derived(errors)

    def wait(self, error: str, tried: int) -> float:
        """Return the seconds before the next retry, which double with each; infinity for none.

        `error` is the exception's ``repr``.
        """
        name = error.partition("(")[0].strip().rpartition(".")[2]
        if tried >= self.most or name not in self._names:
            return math.inf
        # The exponent is capped to avoid overflow.
        return min(self.delay * 2.0 ** min(tried, 30), _LONGEST)


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
