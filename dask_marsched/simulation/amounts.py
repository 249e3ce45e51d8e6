"""Reads amounts, with units or without, of the arguments of `simulate`, `explain` and commands."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import click
from dask.utils import parse_bytes, parse_timedelta

#: Errors that Dask's parsers raise.
_ERRORS = (TypeError, ValueError, AttributeError, KeyError, IndexError)


def read_bytes(name: str, given: Any) -> int:
    """Return bytes above 0 of an argument; ValueError, which names it, for anything else."""
    number: float = _read(name, given, parse_bytes, "bytes or a text like '16GiB'")
    return math.ceil(number)


def read_rate(name: str, given: Any) -> float:
    """Return bytes per second, likewise."""
    text = given.removesuffix("/s") if isinstance(given, str) else given
    accepted = "bytes per second or a text like '1GB/s'"
    return float(_read(name, text, parse_bytes, accepted, most=math.inf))


def read_seconds(name: str, given: Any, *, zero: bool = False) -> float:
    """Return seconds above 0, or also 0 with ``zero``, likewise."""
    accepted = "seconds or a text like '1ms'"
    return float(_read(name, given, parse_timedelta, accepted, zero=zero))


def read_number(name: str, given: Any) -> float:
    """Return a number above 0, likewise."""
    return float(_read(name, given, float, "a number"))


def _read(
    name: str,
    given: Any,
    parse: Callable[[Any], Any],
    accepted: str,
    *,
    zero: bool = False,
    most: float = sys.float_info.max,
) -> Any:
    try:
        if isinstance(given, str) and given.strip()[:1] not in tuple("0123456789."):
            raise ValueError  # Dask reads a unit alone as 1 of it, and "-5ms" as "1-5ms"
        number = given if isinstance(given, int | float) else parse(given)
    except _ERRORS:
        raise ValueError(f"{name} must be {accepted}, not {given!r}") from None
    if not (number > 0 or (zero and number == 0)):
        raise ValueError(f"{name} must be {'0 or more' if zero else 'more than 0'}, not {given!r}")
    if number > most:
        raise ValueError(f"{name} must be finite, not {given!r}")
    return number


class Amount(click.ParamType[Any]):
    """An option that is read by a function, whose ValueError is the message."""

    def __init__(self, name: str, read: Callable[[Any], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return what the function returns, or end with its message."""
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
