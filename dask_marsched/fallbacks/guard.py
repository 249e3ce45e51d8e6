"""No exception of ours gets out of a hook."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from dask_marsched.fallbacks.counters import Counters


class Guarded(Protocol):
    """What has guarded hooks."""

    counters: Counters
    #: Why it has given up, or None.
    failure: str | None


S = TypeVar("S", bound=Guarded)
P = ParamSpec("P")
R = TypeVar("R")


def guarded(
    default: Callable[[], Any], *, fatal: bool = False
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R]]:
    """Decorate a hook: count its exceptions, and return what leaves the decision to Dask.

    Parameters
    ----------
    default
        Makes the value returned after an exception.
    fatal
        After an exception of this hook it is not known any more what is withheld and for whom:
        a task could wait for ever. `Guarded.failure` is set then, and the adapter restores
        stock Dask.
    """

    def decorate(hook: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
        @wraps(hook)
        def wrapper(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return hook(self, *args, **kwargs)
            except Exception as error:
                self.counters.caught(hook.__name__, error)
                if fatal and self.failure is None:
                    cause = "".join(traceback.format_exception_only(error)).strip()
                    self.failure = f"{hook.__name__} failed: {cause}"
                return cast(R, default())

        return cast(Callable[Concatenate[S, P], R], wrapper)

    return decorate
