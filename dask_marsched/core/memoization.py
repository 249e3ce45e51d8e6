"""Remembers what followed from graphs: a program sends the same one often, under other names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Sized
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: Graphs that are remembered for a function.
_GRAPHS = 16
#: Most operands of a graph that is remembered.
MOST_OPERANDS = 2000
_recalls: list[Any] = []


def memoized(function: Callable[P, T]) -> Callable[P, T]:
    """Remember the last results of a pure function of a graph.

    The first argument has an entry for each operand. Arguments are hashable, or lists of what is.
    Results must not be changed.
    """
    recall = functools.lru_cache(_GRAPHS)(function)
    _recalls.append(recall)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        first: Sized = args[0]  # type: ignore[assignment]  # by the contract above
        if len(first) > MOST_OPERANDS:
            return function(*args, **kwargs)
        return recall(*[tuple(a) if type(a) is list else a for a in args], **kwargs)  # type: ignore[arg-type]  # tuples instead of lists

    return call


def without_tokens(keys: Iterable[Hashable]) -> list[Any]:
    """Return keys with numbers instead of names, the same whenever a graph comes again."""
    number: dict[Any, int] = {}
    return [
        (number.setdefault(key[0], len(number)), *key[1:])
        if isinstance(key, tuple) and key
        else number.setdefault(key, len(number))
        for key in keys
    ]


def forget() -> None:
    """Forget all graphs."""
    for recall in _recalls:
        recall.cache_clear()
