"""Installs the plugins on every worker and nanny of a scheduler, and removes them again."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any
from weakref import WeakKeyDictionary

from distributed.scheduler import Scheduler

from dask_marsched.config import Settings
from dask_marsched.host.worker.nanny_registration import NAME as ON_NANNIES

#: Name of the plugin on the workers.
NAME = "marsched"
#: Seconds to wait for the present workers; one that hangs gets the message when it recovers.
_PATIENCE = 10.0
#: The last broadcast of each scheduler.
_last: WeakKeyDictionary[Scheduler, asyncio.Task[None]] = WeakKeyDictionary()

# Source text, because byte code fits one minor version of Python only. An exception would keep the
# worker from starting, so it gets an empty plugin if the package is missing there or does not know
# a setting.
_LOAD = """
def load(settings):
    from distributed.diagnostics.plugin import {empty}
    try:
        from dask_marsched.{module} import {plugin}
        return {plugin}(**settings)
    except Exception:
        return {empty}()
"""
_ON_WORKER = _LOAD.format(empty="WorkerPlugin", module="worker_plugin", plugin="MarsWorkerPlugin")
_ON_NANNY = _LOAD.format(
    empty="NannyPlugin", module="host.worker.nanny_registration", plugin="LastingRegistration"
)
_CALL = "[space := {}, exec(text, space), space['load'](settings)][-1]"


class _Parcel:
    """Unpickles as a plugin of ours, or as an empty plugin."""

    def __init__(self, text: str, settings: dict[str, Any]) -> None:
        self.text = text
        self.settings = settings

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (_CALL, {"text": self.text, "settings": self.settings})


class WorkerRegistration:
    """Installs the worker plugin on the workers of one scheduler."""

    def __init__(self, scheduler: Scheduler, settings: Settings) -> None:
        self.scheduler = scheduler
        # Policies may be registered here and unknown there.
        ours = ("quota_", "store_", "interrupt", "adopt", "kernels_", "journal_")
        chosen = {k: v for k, v in vars(settings).items() if k.startswith(ours)}
        self._plugin = pickle.dumps(_Parcel(_ON_WORKER, chosen))
        self._journaled = settings.journal_directory is not None
        self._under_way: set[asyncio.Future[Any]] = set()

    async def add(self) -> None:
        """Install the plugin on all workers; wait until all but those that hang have it."""
        self.scheduler.worker_plugins[NAME] = self._plugin
        if self._journaled:
            # For nannies that come later: those that are there have registered.
            self.scheduler.nanny_plugins[ON_NANNIES] = pickle.dumps(_Parcel(_ON_NANNY, {}))
        self._send({"op": "plugin-add", "plugin": self._plugin, "name": NAME})
        await self.done()

    def remove(self) -> None:
        """Remove the plugin from all workers, in the background. Idempotent."""
        # Another registration may have replaced it.
        if self.scheduler.worker_plugins.get(NAME) is self._plugin:
            del self.scheduler.worker_plugins[NAME]
            self.scheduler.nanny_plugins.pop(ON_NANNIES, None)
            self._send({"op": "plugin-remove", "name": NAME})

    async def done(self) -> None:
        """Wait until all workers have answered, except for those that hang."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=_PATIENCE)

    def _send(self, message: dict[str, Any]) -> None:
        task = asyncio.create_task(self._broadcast(message, _last.get(self.scheduler)))
        _last[self.scheduler] = task
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _broadcast(self, message: dict[str, Any], before: asyncio.Task[None] | None) -> None:
        # In order: messages take separate connections, and a removal that arrives late would remove
        # the next plugin.
        if before is not None and not before.done():
            await asyncio.wait([before], timeout=_PATIENCE)
        # Workers may leave meanwhile.
        await self.scheduler.broadcast(msg=message, on_error="ignore")
