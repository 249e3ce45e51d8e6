"""Shows the progress of a computation in terminals and notebooks: `progress`."""

from __future__ import annotations

import asyncio
import contextlib
import html
import shutil
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TextIO

import distributed
from dask.utils import parse_timedelta
from distributed.client import futures_of
from distributed.core import connect
from distributed.protocol.pickle import dumps
from distributed.utils import is_kernel

from dask_marsched.installation import how_to_install
from dask_marsched.monitoring import progress_feed, progress_view

Progress = dict[str, Any]

#: In files, a line is written after this share of the work, or this many seconds.
_STEP, _EVERY = 0.1, 30.0
#: Seconds to wait for the last line after Ctrl-C.
_PATIENCE = 2.0


def progress(
    *futures: Any,
    notebook: bool | None = None,
    multi: bool = True,
    complete: bool = True,
    interval: str | float = "200ms",
    file: TextIO | None = None,
) -> Any:
    """Show the progress of a computation: operands by phase, and an estimate of the time left.

    As with `distributed.progress`, in a terminal it returns when the computation has finished,
    failed or was cancelled; in a notebook it returns a view at once, and must be the last
    statement of the cell. Ctrl-C stops the display, not the computation.

    The estimate is derived from the durations of the operands of each kind that have run, and the
    number of threads that were busy with them. It is unknown until an operand has run.

    Parameters
    ----------
    *futures
        Futures, persisted collections, or lists of these.
    notebook : bool, optional
        Whether this is a notebook; detected by default.
    multi : bool
        Whether a notebook also shows the kinds of operands.
    complete : bool
        Whether to count operands that already had a result at the start.
    interval : str or float
        Time between two updates, seconds.
    file : file, optional
        Where to write instead of the standard output. On a terminal one line is updated, elsewhere
        a line is written for each tenth of the work, and each half minute.

    Returns
    -------
    None or ProgressView
        The view that a notebook displays, else None. For an asynchronous client, except in a
        notebook, an awaitable of None.

    Raises
    ------
    RuntimeError
        dask_marsched is not installed on the scheduler. A notebook shows the message instead.

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
        listener.ended.wait(_PATIENCE)  # for its last line
        raise


class Listener:
    """Receives the progress of a computation from the scheduler until it has ended."""

    def __init__(self, futures: list[Any], complete: bool, interval: float) -> None:
        self.client: Any = futures[0].client if futures else None
        self._futures = futures
        keys = list(dict.fromkeys(f.key for f in futures))
        self._setup = partial(progress_feed.begin, keys=keys, complete=complete)
        self._interval = interval
        self._task: asyncio.Task[Any] | None = None
        self.ended = threading.Event()

    def stop(self) -> None:
        """Stop listening; called on the event loop's thread."""
        if self._task is not None:
            self._task.cancel()

    async def listen(self, draw: Callable[[Progress], None]) -> None:
        """Draw each message until the end; RuntimeError if the scheduler cannot follow."""
        last: Progress = {**_EMPTY, "status": "lost"}
        comm = None
        self._task = asyncio.current_task()
        try:
            comm = await connect(self.client.scheduler.address, **self.client.connection_args)
            await comm.write(
                {
                    "op": "feed",
                    "setup": dumps(self._setup),
                    "function": dumps(progress_feed.look),
                    "teardown": dumps(progress_feed.end),
                    "interval": self._interval,
                }
            )
            while not progress_view.is_ended(state := self._checked(await comm.read())):
                last = state
                draw(state)
            last = state
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

    def _checked(self, state: Any) -> Progress:
        if not isinstance(state, dict) or "phases" not in state:
            reason = (
                state.get("text") or state.get("exception") if isinstance(state, dict) else state
            )
            raise RuntimeError(
                "the scheduler cannot follow the computation. dask_marsched must be installed "
                f"there: run {how_to_install()}, in its environment, and restart it. "
                f"It says: {reason}"
            )
        found: Progress = state
        if found["status"] == "expected" and any(f.cancelled() for f in self._futures):
            found["status"] = "cancelled"  # the scheduler will never get it
        return found


_EMPTY: Progress = {
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
    """Draws on a terminal, or writes lines to a file."""

    def __init__(self, file: TextIO | None) -> None:
        self._file = file
        self._written: tuple[float, float] | None = None

    def draw(self, state: Progress) -> None:
        """Draw a message."""
        # The standard output may be redirected meanwhile.
        file = sys.stdout if self._file is None else self._file
        # A file may be closed meanwhile.
        with contextlib.suppress(ValueError, OSError):
            ended = progress_view.is_ended(state)
            text = progress_view.last_line(state) if ended else progress_view.line(state)
            if file.isatty():
                width = shutil.get_terminal_size().columns - 1
                file.write(f"\r{text if ended else text[:width]}\033[K" + ("\n" if ended else ""))
            elif ended or self._is_due(state):
                file.write(text + "\n")
            file.flush()

    def _is_due(self, state: Progress) -> bool:
        share, now = progress_view.share(state["phases"]), time.monotonic()
        if state["status"] != "running":
            return False
        if self._written is not None:
            before, at = self._written
            if share < before + _STEP and now < at + _EVERY:
                return False
        self._written = (share, now)
        return True


class ProgressView:
    """Displays the progress of a computation in a notebook, also while other cells run."""

    def __init__(self, listener: Listener, multi: bool = True) -> None:
        self._listener = listener
        self._multi = multi
        status = "nothing" if listener.client is None else "expected"
        self.html = progress_view.to_html({**_EMPTY, "status": status})
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

    def _draw(self, state: Progress) -> None:
        self._put(progress_view.to_html(state, by_kind=self._multi))

    def _put(self, text: str) -> None:
        if text != self.html and self._show is not None:
            self.html = text
            self._show(text)


def _display(text: str, kwargs: dict[str, Any]) -> Callable[[str], None]:
    """Display HTML in a notebook; return a function that replaces it."""
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
