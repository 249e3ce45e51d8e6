"""Runs a scheduler with a journal, and starts it again whenever its process dies: `supervise`."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import FrameType

import click

#: A scheduler that dies so often in so many seconds is not started again.
_OFTEN, _SOON = 5, 60.0
_PR_SET_PDEATHSIG = 1


def command(arguments: Sequence[str]) -> list[str]:
    """Return the command of a scheduler with our plugin."""
    given = list(arguments)
    if "dask_marsched" not in given:
        given = ["--preload", "dask_marsched", *given]
    return [sys.executable, "-m", "dask", "scheduler", *given]


class _Child:
    """The scheduler's process, and the signal that is to end it for good.

    It passes signals on as soon as it is made; one that is ignored, as by nohup, stays so.
    """

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self._process: subprocess.Popen[bytes] | None = None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        # A terminal that closes may send it twice; a scheduler ends at once on a second SIGTERM.
        if number == signal.SIGHUP and self.asked is not None:
            return
        # SIGHUP would kill the scheduler before it has written or closed all.
        self.asked = signal.SIGTERM if number == signal.SIGHUP else signal.Signals(number)
        if self._process is not None:
            self._process.send_signal(self.asked)

    def run(self, arguments: Sequence[str]) -> int:
        """Start it, and return its exit code."""
        self._process = process = subprocess.Popen(
            command(arguments), start_new_session=True, preexec_fn=_ends_with_us()
        )
        if self.asked is not None:  # since the last look, when there was no process to send it to
            process.send_signal(self.asked)
        return process.wait()


def _ends_with_us() -> Callable[[], None] | None:
    """Return what has a new process end when this thread does, even by SIGKILL; Linux only.

    An orphan would keep the address from the next scheduler.
    """
    if sys.platform != "linux":
        return None
    us, prctl = os.getpid(), ctypes.CDLL(None).prctl

    def end_with_us() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # our handler would swallow it until exec
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != us:  # too late
            os.kill(os.getpid(), signal.SIGTERM)

    return end_with_us


#: Exit status of a program whose command line is wrong.
_USAGE = 2


def supervise(arguments: Sequence[str]) -> int:
    """Run a scheduler until it ends by itself or by a signal; return its exit status.

    SIGTERM, SIGINT and SIGHUP are passed on, and end it for good. The status is that of a shell:
    128 and the number of the signal that the scheduler ended by.
    """
    child = _Child()
    deaths: deque[float] = deque(maxlen=_OFTEN)
    while True:
        code = child.run(arguments)
        status = code if code >= 0 else 128 - code
        if child.asked is not None or code in (0, _USAGE):
            return status
        now = time.monotonic()
        deaths.append(now)
        if len(deaths) == _OFTEN and now - deaths[0] < _SOON:
            click.echo(f"The scheduler has died {_OFTEN} times within a minute: given up", err=True)
            return status
        click.echo(f"The scheduler has died (exit code {code}); it is started again", err=True)
