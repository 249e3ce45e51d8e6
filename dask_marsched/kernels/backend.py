"""Defines what a backend offers: functions that evaluate expressions for certain arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from dask_marsched.kernels.bound_expression import BoundExpression


class UnsupportedError(Exception):
    """A backend cannot evaluate an expression."""


class Results(NamedTuple):
    """The results of an expression.

    Attributes
    ----------
    values
        One for each output.
    raised
        The floating-point errors, named as in `numpy.errstate`, that NumPy would have reported.
    doubtful
        Whether NumPy has to evaluate the chunk again, even if it ignores all errors.
    """

    values: list[Any]
    raised: set[str]
    doubtful: bool = False


class Backend(Protocol):
    """A way to evaluate expressions."""

    name: str

    def prepares_quickly(self, bound: BoundExpression, exact: bool) -> bool:
        """Whether `prepare` takes less time than a chunk does, as nothing has to be compiled."""
        ...

    def prepare(self, bound: BoundExpression, exact: bool) -> Callable[[Sequence[Any]], Results]:
        """Return a function that evaluates an expression, given its inputs.

        Parameters
        ----------
        bound
            The expression, and the arrays it is applied to.
        exact
            Whether results have to be NumPy's to the last bit.

        Raises
        ------
        UnsupportedError
            If the backend cannot evaluate it.
        """
        ...
