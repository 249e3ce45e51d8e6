"""Keeps exceptions of the plugin's hooks from reaching Dask: `guarded`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from dask_marsched.fallbacks.counters import Counters


class Guarded(Protocol):
    """A class with guarded hooks."""

    counters: Counters
    #: Why stock Dask has to take over, or None.
    failure: str | None


S = TypeVar("S", bound=Guarded)
P = ParamSpec("P")
R = TypeVar("R")


def guarded(
    default: Callable[[], Any], *, fatal: bool = False, last: bool = False
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R]]:
    """Decorate a hook so that exceptions are counted, and the value of `default` is returned.

    `fatal`: an exception leaves it unknown which tasks are withheld, so that one could wait for
    ever. It sets `Guarded.failure`, and the adapter restores stock Dask. From then on no hook runs
    but those that are `last`.
    """

    def decorate(hook: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
        @wraps(hook)
        def wrapper(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
            if self.failure is not None and not last:
                return cast(R, default())
            try:
                return hook(self, *args, **kwargs)
            except Exception as error:
                self.counters.caught(hook.__name__, error)
                if fatal and self.failure is None:  # else this is its consequence
                    self.failure = f"{hook.__name__} failed: {self.counters.last_exception}"
                return cast(R, default())

        return cast(Callable[Concatenate[S, P], R], wrapper)

    return decorate
