"""Defines the options of the command line that describe a simulation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from dask_marsched.simulation.amounts import Amount, read_bytes, read_rate, read_seconds

F = TypeVar("F", bound=Callable[..., Any])


def duration_type(*, zero: bool = False) -> Amount:
    """Return the type of an option that is a duration above 0, or also 0 with ``zero``."""
    return Amount("duration", functools.partial(read_seconds, "it", zero=zero))


def cluster_options(command: F) -> F:
    """Add the options that describe the cluster; they are named as `simulate`'s parameters."""
    amount = Amount("amount", functools.partial(read_bytes, "it"))
    rate = Amount("rate", functools.partial(read_rate, "it"))
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
                "--latency", default="1ms", show_default=True, type=duration_type(zero=True),
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
