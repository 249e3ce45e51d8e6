"""Adds partial results piece by piece, in the order and in the types of NumPy and Dask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from dask.array.numpy_compat import divide

#: Elements computed at a time: they stay in the processor's cache.
PIECE = 16384
DOUBLE = np.dtype("f8")
#: By error, a number that has it if it is divided by 0.
_DIVIDENDS = {"divide by zero": 1.0, "invalid value": 0.0}


def add_parts(parts: Sequence[Any], into: Any) -> None:
    """Add arrays, or numbers for all elements, in their order and in the type of ``into``."""
    first, *others = parts
    np.add(first, others[0] if others else 0, into, dtype=into.dtype)
    for part in others[1:]:
        np.add(into, part, into, dtype=into.dtype)
    if others:
        np.add(into, 0, into)  # NumPy begins with zero: no sum is -0.0


def quiet() -> np.errstate:
    """Ignore divisions by zero, as Dask does where a mean may be one of no elements."""
    return np.errstate(divide="ignore", invalid="ignore")


class SquaredDeviations:
    """Adds squared deviations from a common mean, in the types of Dask's `_moment_helper`.

    ``mean`` is the type that means are computed in, ``total`` that of the partial sums, and
    ``squares`` that of the squared deviations so far. The last stage, if it ``ends``, divides them
    by the number of elements less ``ddof``; what NumPy would warn of in its two divisions is in
    ``errors``, for `warn_again`.
    """

    def __init__(
        self,
        mean: np.dtype[Any],
        total: np.dtype[Any],
        squares: np.dtype[Any],
        *,
        ends: bool,
        ddof: float,
        skips_nan: bool,
    ) -> None:
        self._ends, self._ddof, self._skips_nan = ends, ddof, skips_nan
        self.errors: tuple[set[str], set[str]] = (set(), set())
        self._quotient = np.empty(PIECE, mean)
        self._wide = np.empty(PIECE, DOUBLE)
        self._terms = np.empty(PIECE, total if ends else DOUBLE)
        self._summed = np.empty(PIECE, total if ends else squares)

    def add(
        self,
        total: Any,
        totals: Sequence[Any],
        squares: Sequence[Any],
        number: Any,
        counts: Sequence[Any],
        into: Any,
    ) -> None:
        """Add a piece of some partial results; counts are arrays, or numbers for all elements."""
        here = slice(0, into.size)
        quotient, wide, terms, summed = (
            buffer[here] for buffer in (self._quotient, self._wide, self._terms, self._summed)
        )
        add_parts(squares, summed)
        terms.fill(0)
        if self._ends:  # only here Dask warns of a mean of nothing
            with _noted(self.errors[0]):
                mean = np.divide(total, number)
        else:
            with quiet():
                mean = _divided(total, number, np.empty_like(quotient))
        for part, count in zip(totals, counts, strict=True):
            deviation = wide if self._ends else quotient
            with quiet():
                np.subtract(_divided(part, count, quotient), mean, deviation)
            if self._ends:
                np.copyto(deviation, 0, where=count == 0)
            np.square(deviation, deviation)
            np.multiply(deviation, count, wide)
            if self._skips_nan:
                np.copyto(wide, 0, where=np.isnan(wide))
            np.add(terms, wide, terms, dtype=terms.dtype)
        np.add(summed, terms, into)
        if self._ends:
            least = np.subtract(number, self._ddof, dtype=into.dtype)
            least[least < 0] = np.nan
            with _noted(self.errors[1]):
                np.divide(into, least, into)


def _noted(errors: set[str]) -> np.errstate:
    """Add the errors of divisions to a set, instead of warning or raising."""
    return np.errstate(divide="call", invalid="call", call=lambda kind, _: errors.add(kind))


def warn_again(errors: Iterable[str]) -> None:
    """Divide so that NumPy warns, or raises, of the errors that were noted in a division."""
    for kind in sorted(errors):  # in the order of NumPy
        divide(np.array([_DIVIDENDS[kind]]), np.array([0]))


def _divided(array: Any, count: Any, into: Any) -> Any:
    if into.dtype == DOUBLE:
        return np.divide(array, count, into)
    # In which type it divides depends on the version of NumPy.
    into[...] = divide(array, count, dtype=into.dtype)
    return into
