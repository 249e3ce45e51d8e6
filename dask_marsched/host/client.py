"""A client that registers a scheduler plugin as the last step of its start-up.

distributed has no public place for this: a client made with ``asynchronous=True`` starts in a
task of its own, and ``Client._start`` is the coroutine that both ways of starting await.
"""

from __future__ import annotations

import inspect
from typing import Any

import distributed
from distributed.diagnostics.plugin import SchedulerPlugin

from dask_marsched.installation import explain_missing_module


def clients_here() -> tuple[str, ...]:
    """Return the ids of the clients in this process, as far as distributed tells."""
    found = getattr(distributed.Client, "_instances", ())
    return tuple(sorted(client.id for client in list(found) if client.status != "closed"))


def check_start_hook() -> None:
    """Verify that this version of distributed starts its clients as we expect.

    Raises
    ------
    RuntimeError
        If `distributed.Client` has no coroutine functions ``_start`` and ``_close``.
    """
    for name in ("_start", "_close"):
        # `_close` is decorated, and the decorator keeps it a coroutine function
        if not inspect.iscoroutinefunction(getattr(distributed.Client, name, None)):
            raise RuntimeError(
                f"distributed {distributed.__version__} has no coroutine Client.{name}, which "
                "dask_marsched.Client(scheduler_plugin=...) builds on. Use distributed.Client "
                "and client.register_plugin(dask_marsched.MarsSchedulerPlugin()) instead."
            )


class RegisteringClient(distributed.Client):
    """`distributed.Client` that registers ``plugin`` once it is connected.

    A client whose plugin cannot be registered closes itself, and the cluster if it made that,
    and its start-up raises: a `RuntimeError` that says what to install where, if the scheduler
    cannot import what the plugin is made of.
    """

    def __init__(self, *args: Any, plugin: SchedulerPlugin | None, **kwargs: Any) -> None:
        if plugin is not None:
            check_start_hook()
        self._plugin_at_start = plugin
        try:
            super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]  # untyped there
        except BaseException:
            self._stop_loop()
            raise

    async def _start(self, *args: Any, **kwargs: Any) -> Any:
        started = await super()._start(*args, **kwargs)  # type: ignore[no-untyped-call]  # untyped there
        if self._plugin_at_start is not None:
            try:
                await self.register_plugin(self._plugin_at_start)
            except BaseException as error:
                # BaseException: who cancels the start-up must not be left with a cluster either
                await self._close(fast=True)
                if isinstance(error, ImportError):
                    raise RuntimeError(explain_missing_module(error, "scheduler")) from error
                raise
        return started

    def _stop_loop(self) -> None:
        # A client that closed itself while it started: neither `close` nor `__del__` of
        # distributed stops the thread of its event loop any more. One that failed earlier is
        # not closed yet, and `__del__` still needs the loop for that.
        runner = getattr(self, "_loop_runner", None)
        if runner is not None and self.status == "closed" and not self._asynchronous:
            runner.stop()
