"""Makes a client register a scheduler plugin as the last step of its start-up.

distributed has no public hook for this, so ``Client._start`` is overridden, which both kinds of
clients await.
"""

from __future__ import annotations

import inspect
from contextvars import ContextVar
from typing import Any

import distributed
from distributed.diagnostics.plugin import SchedulerPlugin

from dask_marsched.host.client.reconnection import keeps_journal, outlive_scheduler
from dask_marsched.host.stream_intervals import send_often
from dask_marsched.installation import explain_missing_module

#: The address of the scheduler with which a `RegisteringClient` registers its plugin just now.
_registering_with: ContextVar[str | None] = ContextVar("registering_with", default=None)


def clients_here() -> tuple[str, ...]:
    """Return the ids of the open clients in this process whose scheduler gets the plugin.

    Where a stock client registers it, these are the clients of all schedulers: nothing tells the
    plugin which client that is.
    """
    address = _registering_with.get()
    found = [c for c in list(getattr(distributed.Client, "_instances", ())) if c.status != "closed"]
    return tuple(sorted(c.id for c in found if address in (None, _scheduler_of(c))))


def _scheduler_of(client: Any) -> str | None:
    return getattr(client.scheduler, "address", None)


def check_start_hook() -> None:
    """Raise a RuntimeError if `distributed.Client` does not start as expected here."""
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

    If that fails, it closes itself and the cluster that it may have made, and raises; a
    `RuntimeError` tells what to install if the scheduler cannot import the plugin.
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
        try:
            if self._plugin_at_start is not None:
                await self._register(self._plugin_at_start)
            settings = getattr(self._plugin_at_start, "settings", None)
            if keeps_journal(self) or getattr(settings, "journal_directory", None) is not None:
                await outlive_scheduler(self)
        except BaseException as error:
            # BaseException: a cancelled start-up must not leave a cluster behind either
            await self._close(fast=True)
            if isinstance(error, ImportError):
                raise RuntimeError(explain_missing_module(error)) from error
            raise
        return started

    async def _register(self, plugin: SchedulerPlugin) -> None:
        token = _registering_with.set(_scheduler_of(self))
        try:
            await self.register_plugin(plugin)
        finally:
            _registering_with.reset(token)

    async def _ensure_connected(self, timeout: float | None = None) -> None:
        await super()._ensure_connected(timeout)  # type: ignore[no-untyped-call]  # untyped there
        if self._plugin_at_start is not None:
            send_often(self)

    def _stop_loop(self) -> None:
        # Neither `close` nor `__del__` stops the event loop's thread of a client that closed itself
        # during its start-up. A client that failed earlier still needs the loop in `__del__`.
        runner = getattr(self, "_loop_runner", None)
        if runner is not None and self.status == "closed" and not self._asynchronous:
            runner.stop()
