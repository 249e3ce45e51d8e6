"""What every backend offers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from dask_marsched.kernels.bound_expression import Setting


class UnsupportedError(Exception):
    """A backend cannot evaluate an expression."""


class Results(NamedTuple):
    """The results of an expression.

    Attributes
    ----------
    values
        One for each output.
    raised
        Names, as in `numpy.errstate`, of the floating-point errors that NumPy would have told.
    doubtful
        Whether NumPy has to compute them again whatever `numpy.errstate` is.
    """

    values: list[Any]
    raised: set[str]
    doubtful: bool = False


class Backend(Protocol):
    """A way to evaluate expressions."""

    name: str

    def at_hand(self, setting: Setting, exact: bool) -> bool:
        """Whether `prepare` takes less time than a chunk does: nothing has to be compiled."""
        ...

    def prepare(self, setting: Setting, exact: bool) -> Callable[[Sequence[Any]], Results]:
        """Return a function that evaluates an expression in its setting.

        Parameters
        ----------
        setting
            The expression, and the arrays it is applied to.
        exact
            Whether results have to be the same as NumPy's to the last bit.

        Raises
        ------
        UnsupportedError
            If the backend cannot do that.
        """
        ...
