"""Defines what a backend offers: functions that evaluate expressions for certain arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from dask_marsched.kernels.bound_expression import BoundExpression


class UnsupportedError(Exception):
    """A backend cannot evaluate an expression."""


class Results(NamedTuple):
    """The results of an expression, one value for each output."""

    values: list[Any]
    raised: set[str]  #: errors that NumPy would have reported, named as in `numpy.errstate`
    #: whether NumPy has to evaluate the chunk again, even if it ignores all errors
    doubtful: bool = False


class Backend(Protocol):
    """A way to evaluate expressions."""

    name: str

    def prepares_quickly(self, bound: BoundExpression, exact: bool) -> bool:
        """Whether `prepare` takes less time than a chunk does, as nothing has to be compiled."""
        ...

    def prepare(self, bound: BoundExpression, exact: bool) -> Callable[[Sequence[Any]], Results]:
        """Return a function that evaluates an expression, given its inputs.

        ``exact`` asks for NumPy's results to the last bit. Raises UnsupportedError.
        """
        ...
