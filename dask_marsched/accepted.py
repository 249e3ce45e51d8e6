"""What options accept: pairs of a check, which converts a value, and what it accepts, as text.

A check returns the value in the type and unit of `dask_marsched.config.Settings` and raises any of
``ValueError``, ``TypeError``, ``KeyError``, ``OverflowError`` where it is not accepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dask.utils import parse_bytes, parse_timedelta

from dask_marsched.policies import registry

#: What `marsched.fusion.backends` may name: `dask_marsched.fusion.backends`.
BACKENDS = ("llvm", "blocks", "numexpr")


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _number(value: Any) -> float:
    # bool is a number to Python, but `stake: true` is a mistake
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


def _at_least_zero(value: Any) -> float:
    number = _number(value)
    if not (math.isfinite(number) and number >= 0):
        raise ValueError
    return number


def _above_zero(value: Any) -> float:
    number = _at_least_zero(value)
    if number == 0:
        raise ValueError
    return number


def _seconds(value: Any) -> float:
    # dask reads "-5ms" as "1-5ms" and True as a unit: sort these out before it sees them
    if isinstance(value, str) and value[:1].isdigit():
        return _at_least_zero(float(parse_timedelta(value)))
    return _at_least_zero(value)


def _bytes(value: Any) -> int:
    if isinstance(value, str) and value[:1].isdigit():
        return int(parse_bytes(value))
    return int(_at_least_zero(value))


def _bound(value: Any) -> float | None:
    return None if value in ("auto", None) else _above_zero(value)


def _share(value: Any) -> float:
    number = _above_zero(value)
    if number > 1:
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


def _whole(value: Any) -> int:
    count = _count(value)
    if count == 0:
        raise ValueError
    return count


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


def _backends(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        raise TypeError
    names = tuple(value)
    if any(name not in BACKENDS for name in names) or len(set(names)) < len(names):
        raise ValueError
    return names


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
AT_LEAST_ZERO = (_at_least_zero, _text("a number of 0 or more"))
ABOVE_ZERO = (_above_zero, _text("a number above 0"))
BOUND = (_bound, _text('"auto" or a number above 0'))
SHARE = (_share, _text("a number above 0 and not above 1"))
WHOLE = (_whole, _text("a whole number of 1 or more"))
GRAPH_FUSION = (_fusion, _text("one of " + ", ".join(FUSION)))
ADOPTION = (_adoption, _text("one of " + ", ".join(ADOPTED)))
COUNT = (_count, _text("a whole number of 0 or more"))
DURATION = (_seconds, _text('a duration of 0 or more, such as "10ms", or a number of seconds'))
NAMES = (_names, _text('a list of names of exceptions, such as ["OSError"]'))
AMOUNT = (_bytes, _text('an amount of 0 or more, such as "1MiB", or a number of bytes'))


KERNEL_BACKENDS = (_backends, _text(f"a list of names out of {', '.join(BACKENDS)}"))
COMPRESSION = (_compression, _text('"auto", the name of one of Dask\'s compressions, or null'))
CACHE = (_cache, _text('"auto", "off" or the path of a directory'))


def named(kind: str) -> tuple[Callable[[Any], str], Callable[[], str]]:
    """Return the check of the name of a policy."""
    return _policy(kind), _policies(kind)
