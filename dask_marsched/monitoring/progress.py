"""`progress`: how far a computation is, by phases, and how long it will go on."""

from __future__ import annotations

import asyncio
import contextlib
import html
import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

import distributed
from dask.utils import parse_timedelta
from distributed.client import futures_of
from distributed.core import connect
from distributed.protocol.pickle import dumps
from distributed.utils import is_kernel

from dask_marsched.installation import INSTALL
from dask_marsched.monitoring import progress_feed, progress_view

Told = dict[str, Any]

#: Where there is no terminal a line is written after each of these shares, and of seconds.
_STEP, _EVERY = 0.1, 30.0
#: Seconds to wait for the end after Ctrl-C.
_PATIENCE = 2.0


def progress(
    *futures: Any,
    notebook: bool | None = None,
    multi: bool = True,
    complete: bool = True,
    interval: str | float = "200ms",
    file: TextIO | None = None,
) -> Any:
    """Show how far a computation is: operands by phase, and an estimate of the time left.

    As `distributed.progress`: in a terminal it returns when the computation has ended, with a
    result, an error or by being cancelled; in a notebook it returns at once and leaves something
    to look at, and must be the last statement of the cell. Ctrl-C ends it and leaves the
    computation alone.

    The estimate rests on the durations of the operands that have run, of each kind, and on how
    many threads have been at work on them so far. It is unknown as long as nothing has run.

    Parameters
    ----------
    *futures
        Futures, persisted collections, or lists of these.
    notebook : bool, optional
        Whether this is a notebook; guessed by default.
    multi : bool
        Whether a notebook shows the kinds of operands too.
    complete : bool
        Whether operands count that had a result when it began.
    interval : str or float
        Time between two looks, seconds.
    file : file, optional
        Where to write in place of the standard output. On a terminal one line is written again
        and again, elsewhere a line for each tenth of the work, and each half minute.

    Returns
    -------
    None or ProgressView
        Something that a notebook displays; None in a terminal. With an asynchronous client, and
        not in a notebook, an awaitable of None.

    Raises
    ------
    RuntimeError
        dask_marsched is not installed on the scheduler. In a notebook it is shown instead.

    Examples
    --------
    >>> future = client.compute(x)  # doctest: +SKIP
    >>> dask_marsched.progress(future)  # doctest: +SKIP
    [########==-         ]  43 % | about 2 min 10 s left | waiting 812, ready 40, running 8, ...
    """
    found = [f for f in futures_of(list(futures)) if isinstance(f, distributed.Future)]
    listener = Listener(found, complete, float(parse_timedelta(interval, default="s")))
    if is_kernel() if notebook is None else notebook:
        return ProgressView(listener, multi)
    out = _Lines(file)
    if listener.client is None:
        out.draw({"status": "nothing"})
        return None
    try:
        return listener.client.sync(listener.listen, out.draw)
    except KeyboardInterrupt:
        listener.client.loop.add_callback(listener.stop)
        listener.ended.wait(_PATIENCE)  # so that its last line comes before what is next
        raise


class Listener:
    """Asks the scheduler again and again, until a computation has ended.

    Parameters
    ----------
    futures
        What is computed.
    complete
        As of `progress`.
    interval
        Seconds between two answers.
    """

    def __init__(self, futures: list[Any], complete: bool, interval: float) -> None:
        self.client: Any = futures[0].client if futures else None
        self._futures = futures
        self._feed = progress_feed.ProgressFeed(
            list(dict.fromkeys(f.key for f in futures)), complete
        )
        self._interval = interval
        self._task: asyncio.Task[Any] | None = None
        self.ended = threading.Event()

    def stop(self) -> None:
        """Listen no more; on the event loop's thread."""
        if self._task is not None:
            self._task.cancel()

    async def listen(self, draw: Callable[[Told], None]) -> None:
        """Draw whatever is told, the last time when the computation has ended.

        Raises
        ------
        RuntimeError
            The scheduler cannot answer.
        """
        last: Told = {**_NOTHING, "status": "lost"}
        comm = None
        self._task = asyncio.current_task()
        try:
            comm = await connect(self.client.scheduler.address, **self.client.connection_args)
            await comm.write(
                {
                    "op": "feed",
                    "setup": dumps(self._feed),
                    "function": dumps(progress_feed.look),
                    "teardown": dumps(progress_feed.end),
                    "interval": self._interval,
                }
            )
            while not progress_view.is_ended(told := self._checked(await comm.read())):
                last = told
                draw(told)
            last = told
        except OSError:  # CommClosedError among others
            last = {**last, "status": "lost"}
        except asyncio.CancelledError:
            draw({**last, "status": "stopped"})
            raise
        finally:
            if comm is not None:
                comm.abort()
            self.ended.set()
        draw(last)

    def _checked(self, told: Any) -> Told:
        if not isinstance(told, dict) or "phases" not in told:
            reason = told.get("text") or told.get("exception") if isinstance(told, dict) else told
            raise RuntimeError(
                "the scheduler cannot tell of the computation. dask_marsched must be installed "
                f"there: run `{INSTALL}` in its environment and restart it. It says: {reason}"
            )
        found: Told = told
        if found["status"] == "expected" and any(f.cancelled() for f in self._futures):
            found["status"] = "cancelled"  # and so will never come
        return found


_NOTHING: Told = {
    "phases": dict.fromkeys(progress_feed.PHASES, 0),
    "kinds": [],
    "seconds": None,
    "at_least": False,
    "reason": None,
    "spilled": 0,
    "elapsed": 0.0,
    "error": None,
}


class _Lines:
    """Draws in a terminal, or writes to a file."""

    def __init__(self, file: TextIO | None) -> None:
        self._file = file
        self._written: tuple[float, float] | None = None

    def draw(self, told: Told) -> None:
        """Draw what was told."""
        # Looked up each time: it may be put elsewhere meanwhile.
        file = sys.stdout if self._file is None else self._file
        # A file that has been closed meanwhile ends nothing.
        with contextlib.suppress(ValueError, OSError):
            ended = progress_view.is_ended(told)
            if file.isatty():
                text = progress_view.last_line(told) if ended else progress_view.line(told)
                width = shutil.get_terminal_size().columns - 1
                file.write(f"\r{text if ended else text[:width]}\033[K" + ("\n" if ended else ""))
            elif ended:
                file.write(progress_view.last_line(told) + "\n")
            elif self._is_due(told):
                file.write(progress_view.line(told) + "\n")
            file.flush()

    def _is_due(self, told: Told) -> bool:
        share, now = progress_view.share(told["phases"]), time.monotonic()
        if told["status"] != "running":
            return False
        if self._written is not None:
            before, at = self._written
            if share < before + _STEP and now < at + _EVERY:
                return False
        self._written = (share, now)
        return True


class ProgressView:
    """What a notebook shows of a computation; it goes on while other cells run.

    Parameters
    ----------
    listener
        Asks the scheduler.
    multi
        Whether the kinds of operands are shown.
    """

    def __init__(self, listener: Listener, multi: bool = True) -> None:
        self._listener = listener
        self._multi = multi
        status = "nothing" if listener.client is None else "expected"
        self.html = progress_view.to_html({**_NOTHING, "status": status})
        self._show: Callable[[str], None] | None = None

    def _repr_html_(self) -> str:
        return self.html

    def _ipython_display_(self, **kwargs: Any) -> None:
        self._show = _display(self.html, kwargs)
        if self._listener.client is not None:
            self._listener.client.loop.add_callback(self._listen)

    async def _listen(self) -> None:
        try:
            await self._listener.listen(self._draw)
        except RuntimeError as error:
            self._put(f"<pre>{html.escape(str(error))}</pre>")

    def _draw(self, told: Told) -> None:
        self._put(progress_view.to_html(told, by_kind=self._multi))

    def _put(self, text: str) -> None:
        if text != self.html and self._show is not None:
            self.html = text
            self._show(text)


def _display(text: str, kwargs: dict[str, Any]) -> Callable[[str], None]:
    """Display HTML in a notebook, and return what replaces it."""
    from IPython.display import HTML, display

    try:
        from ipywidgets import HTML as Widget
    except ImportError:
        handle = display(HTML(text), display_id=True, **kwargs)
        return lambda new: handle.update(HTML(new))
    widget = Widget(text)
    display(widget, **kwargs)

    def put(new: str) -> None:
        widget.value = new

    return put
