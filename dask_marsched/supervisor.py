"""Runs a scheduler with a journal, and starts it again whenever its process dies: `supervise`."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from types import FrameType

import click

#: A scheduler that dies so often in so many seconds is not started again.
_OFTEN, _SOON = 5, 60.0


def command(arguments: Sequence[str]) -> list[str]:
    """Return the command of a scheduler with our plugin."""
    given = list(arguments)
    if "dask_marsched" not in given:
        given = ["--preload", "dask_marsched", *given]
    return [sys.executable, "-m", "dask", "scheduler", *given]


def supervise(arguments: Sequence[str]) -> int:
    """Run a scheduler until it ends by itself or by a signal; return its exit code.

    SIGTERM and SIGINT are passed on, and end it for good.
    """
    process: subprocess.Popen[bytes] | None = None
    asked_to_end = False

    def pass_on(number: int, frame: FrameType | None) -> None:
        nonlocal asked_to_end
        asked_to_end = True
        if process is not None:
            process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    deaths: deque[float] = deque(maxlen=_OFTEN)
    while True:
        process = subprocess.Popen(command(arguments), start_new_session=True)
        code = process.wait()
        if asked_to_end or code == 0:
            return code
        now = time.monotonic()
        deaths.append(now)
        if len(deaths) == _OFTEN and now - deaths[0] < _SOON:
            click.echo(f"The scheduler has died {_OFTEN} times within a minute: given up", err=True)
            return code
        click.echo(f"The scheduler has died (exit code {code}); it is started again", err=True)
