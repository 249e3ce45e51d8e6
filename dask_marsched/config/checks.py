"""Checks the values of options.

A check is a pair: a function that converts a value to the type and unit of
`dask_marsched.config.Settings`, and a function that returns what is accepted, for error messages.
The first raises ``ValueError``, ``TypeError``, ``KeyError`` or ``OverflowError`` for other values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from dask.utils import parse_timedelta

from dask_marsched.policies import registry

Check = tuple[Callable[[Any], Any], Callable[[], str]]

#: Values of `marsched.fusion.graph`.
FUSION = ("off", "chains", "subgraphs")


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _number(value: Any) -> float:
    # bool is a number to Python, but `fraction: true` is a mistake
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


def _at_least_zero(value: Any) -> float:
    number = _number(value)
    if not (math.isfinite(number) and number >= 0):
        raise ValueError
    return number


def _seconds(value: Any) -> float:
    # Dask reads "-5ms" as "1-5ms" and True as a unit: neither must reach its parser
    if isinstance(value, str) and value[:1].isdigit():
        return _at_least_zero(float(parse_timedelta(value)))
    return _at_least_zero(value)


def _share(value: Any) -> float:
    number = _number(value)
    if not 0 < number <= 1:
        raise ValueError
    return number


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return int(_at_least_zero(value))


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str | Mapping):
        raise TypeError
    if not all(isinstance(name, str) and name for name in value):
        raise TypeError
    return tuple(value)


def _text_or_none(value: Any, none: tuple[Any, ...]) -> str | None:
    if value in none:
        return None
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


#: Those of Dask. Only the worker knows which of them are installed there.
_COMPRESSIONS = ("auto", "lz4", "snappy", "zlib", "zstd")


def _compression(value: Any) -> str | None:
    name = _text_or_none(value, (None, False, "off"))
    if name not in (None, *_COMPRESSIONS):
        raise ValueError
    return name


def _text(text: str) -> Callable[[], str]:
    return lambda: text


def one_of(*names: str) -> Check:
    """Return the check of one of several words."""

    def parse(value: Any) -> str:
        # YAML reads a bare `off` as false.
        name = "off" if value is False else value
        if name not in names:
            raise ValueError
        return str(name)

    return parse, _text("one of " + ", ".join(names))


def policy_name(kind: str) -> Check:
    """Return the check of the name of a policy."""

    def parse(value: Any) -> str:
        if value not in registry.names(kind):
            raise ValueError
        return str(value)

    return parse, lambda: f"the name of a registered policy ({', '.join(registry.names(kind))})"


SWITCH: Check = (_switch, _text("true or false"))
SHARE: Check = (_share, _text("a number above 0 and not above 1"))
COUNT: Check = (_count, _text("a whole number of 0 or more"))
DURATION: Check = (
    _seconds,
    _text('a duration of 0 or more, such as "10ms", or a number of seconds'),
)
NAMES: Check = (_names, _text('a list of names of exceptions, such as ["OSError"]'))
COMPRESSION: Check = (_compression, _text("null or one of " + ", ".join(_COMPRESSIONS)))
CACHE: Check = (
    lambda value: _text_or_none(value, (None, False, "off")),
    _text('"auto", "off" or the path of a directory'),
)
#: Whether it can be used is seen when it is opened.
PLACE: Check = (
    lambda value: _text_or_none(value, (None,)),
    _text("a directory, a database such as postgresql://user@host/name, or null"),
)
