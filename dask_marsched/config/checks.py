"""What options accept: pairs of a check, which converts a value, and what it accepts, as text.

A check returns the value in the type and unit of `dask_marsched.config.Settings` and raises any of
``ValueError``, ``TypeError``, ``KeyError``, ``OverflowError`` where it is not accepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dask.utils import parse_timedelta

from dask_marsched.policies import registry


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
    # dask reads "-5ms" as "1-5ms" and True as a unit: sort these out before it sees them
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
    if isinstance(value, str) or not all(isinstance(name, str) and name for name in value):
        raise TypeError
    return tuple(value)


#: What `marsched.fusion.graph` accepts.
FUSION = ("off", "chains", "subgraphs")


def _fusion(value: Any) -> str:
    # YAML reads a bare `off` as false.
    name = "off" if value is False else value
    if name not in FUSION:
        raise ValueError
    return str(name)


#: What `marsched.failover.adopt` accepts.
ADOPTED = ("off", "published", "all")


def _adoption(value: Any) -> str:
    # YAML reads a bare `off` as false.
    name = "off" if value is False else value
    if name not in ADOPTED:
        raise ValueError
    return str(name)


def _cache(value: Any) -> str | None:
    if value in (None, "off", False):
        return None
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


def _compression(value: Any) -> str | None:
    if value in (None, False):
        return None
    # which ones there are is known where it is used: on the worker
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


def _policy(kind: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in registry.names(kind):
            raise ValueError
        return str(value)

    return parse


def _policies(kind: str) -> Callable[[], str]:
    return lambda: f"the name of a registered policy ({', '.join(registry.names(kind))})"


def _text(text: str) -> Callable[[], str]:
    return lambda: text


SWITCH = (_switch, _text("true or false"))
SHARE = (_share, _text("a number above 0 and not above 1"))
GRAPH_FUSION = (_fusion, _text("one of " + ", ".join(FUSION)))
ADOPTION = (_adoption, _text("one of " + ", ".join(ADOPTED)))
COUNT = (_count, _text("a whole number of 0 or more"))
DURATION = (_seconds, _text('a duration of 0 or more, such as "10ms", or a number of seconds'))
NAMES = (_names, _text('a list of names of exceptions, such as ["OSError"]'))
COMPRESSION = (_compression, _text('"auto", the name of one of Dask\'s compressions, or null'))
CACHE = (_cache, _text('"auto", "off" or the path of a directory'))


def named(kind: str) -> tuple[Callable[[Any], str], Callable[[], str]]:
    """Return the check of the name of a policy."""
    return _policy(kind), _policies(kind)
