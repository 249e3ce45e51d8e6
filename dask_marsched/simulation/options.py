"""Defines the options of the command line that describe a simulation."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from dask.utils import parse_bytes, parse_timedelta

from dask_marsched.simulation.cluster.faults import KINDS

F = TypeVar("F", bound=Callable[..., Any])

_FAULT = re.compile(r"(?P<what>[^:@]+):(?P<worker>\d+)@(?P<at>[^:@]+)(:(?P<more>[^:@]+))?")
_FAULTS = (
    "kill:WORKER@TIME, join:WORKER@TIME, pause:WORKER@TIME:DURATION, "
    "slow:WORKER@TIME:FACTOR and slow-link:WORKER@TIME:FACTOR"
)


class AmountParam(click.ParamType[float]):
    """A number with a unit: its name for the help, parser, example, and whether 0 is accepted."""

    def __init__(
        self, name: str, parse: Callable[[str], float], example: str, *, zero: bool = False
    ) -> None:
        self.name = name
        self._parse = parse
        self._example = example
        self._zero = zero

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number, or end with a message."""
        text = str(value)
        try:
            if not text[:1].isdigit():  # dask reads a unit alone as 1 of it
                raise ValueError
            number = self._parse(text)
        except (ValueError, KeyError, IndexError):  # Dask's parsers raise any of these
            number = math.inf
        if not 0 <= number < math.inf or (number == 0 and not self._zero):
            least = "" if self._zero else " above 0"
            example = self._example
            self.fail(f"{value!r} is no {self.name}{least}; write e.g. {example}", param, ctx)
        return number


def _rate(text: str) -> float:
    return float(parse_bytes(text.removesuffix("/s")))


def _seconds(text: str) -> float:
    return float(parse_timedelta(text))


class FaultParam(click.ParamType[tuple[Any, ...]]):
    """A fault such as ``kill:3@10s``."""

    name = "fault"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        """Return the tuple that `simulate` accepts, or end with a message."""
        try:
            return read_fault(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def read_fault(text: str) -> tuple[Any, ...]:
    """Return the fault of ``WHAT:WORKER@TIME[:DURATION or FACTOR]``; ValueError if invalid."""
    found = _FAULT.fullmatch(text)
    try:
        if found is None or found["what"] not in KINDS:
            raise ValueError
        what, more = found["what"], found["more"]
        if (more is None) != (what in ("kill", "join")):
            raise ValueError
        fault = (_time(found["at"]), what, int(found["worker"]))
        if more is None:
            return fault
        return (*fault, _time(more) if what == "pause" else float(more))
    except (ValueError, KeyError, IndexError):
        raise ValueError(f"{text!r} is no fault; accepted are {_FAULTS}") from None


def _time(text: str) -> float:
    if not text[:1].isdigit():
        raise ValueError
    return _seconds(text)


def cluster_options(command: F) -> F:
    """Add the options that describe the cluster; they are named as `simulate`'s parameters."""
    amount = AmountParam("amount of memory", lambda text: int(parse_bytes(text)), "16GiB")
    rate = AmountParam("rate", _rate, "1GB/s")
    duration = AmountParam("duration", _seconds, "1ms", zero=True)
    whole = click.IntRange(1)
    for option in reversed(
        (
            click.option("--workers", default=4, show_default=True, type=whole, metavar="N"),
            click.option(
                "--threads", default=1, show_default=True, type=whole, metavar="N",
                help="Of each worker.",
            ),
            click.option(
                "--memory-limit", default="16GiB", show_default=True, type=amount, metavar="BYTES",
                help="Of each worker.",
            ),
            click.option(
                "--bandwidth", default="1GB/s", show_default=True, type=rate,
                help="Of each host, in either direction.",
            ),
            click.option(
                "--latency", default="1ms", show_default=True, type=duration,
                help="Of each message.",
            ),
            click.option(
                "--hosts", type=whole, metavar="N",
                help="Over which the workers are dealt. [default: one for each worker]",
            ),
            click.option(
                "--cores", type=click.FloatRange(0, min_open=True), metavar="N",
                help="Of each host. [default: as many as threads]",
            ),
            click.option(
                "--costs", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                help="Recorded durations and sizes. [default: derived from the graph]",
            ),
        )
    ):  # fmt: skip
        command = option(command)
    return command
