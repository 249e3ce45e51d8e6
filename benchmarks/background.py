"""Runs periodic work in a thread during a ``with`` block."""

from __future__ import annotations

import abc
import threading
from typing import Self


class Background(abc.ABC):
    """Runs `_turn` periodically in a thread as long as a ``with`` block runs.

    Parameters
    ----------
    first
        Seconds until the first turn.
    """

    def __init__(self, first: float = 0.0) -> None:
        self._first = first
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    @abc.abstractmethod
    def _turn(self) -> float | None:
        """Do the work; return the seconds until the next turn, None to stop."""

    def _run(self) -> None:
        pause: float | None = self._first
        while pause is not None and not self._stop.wait(pause):
            pause = self._turn()

    @property
    def running(self) -> bool:
        """Whether the thread is at work: it ends with the block, or with an exception."""
        return self._thread.is_alive()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
