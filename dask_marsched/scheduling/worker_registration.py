"""How the worker plugin comes to every worker of a scheduler, and leaves it again."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any
from weakref import WeakKeyDictionary

from distributed.scheduler import Scheduler

from dask_marsched.config import Settings

#: Name of the plugin on the workers.
NAME = "marsched"
#: Seconds to wait for the workers there are; one that hangs gets it when it wakes.
_PATIENCE = 10.0
#: What the workers of a scheduler were told last.
_last: WeakKeyDictionary[Scheduler, asyncio.Task[None]] = WeakKeyDictionary()

# Text, because byte code fits one minor version of Python only. Where the package is missing, or
# is of a version that does not know a setting, the worker gets a plugin that does nothing: an
# exception there would keep it from starting.
_LOAD = """
def load(settings):
    from distributed.diagnostics.plugin import WorkerPlugin
    try:
        from dask_marsched.worker_plugin import MarsWorkerPlugin
        return MarsWorkerPlugin(**settings)
    except Exception:
        return WorkerPlugin()
"""
_CALL = "[space := {}, exec(text, space), space['load'](settings)][-1]"


class _Parcel:
    """Something that unpickles as the worker plugin, or as one that does nothing."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (_CALL, {"text": _LOAD, "settings": self.settings})


class WorkerRegistration:
    """Puts the worker plugin on the workers of one scheduler.

    Parameters
    ----------
    scheduler
        A running scheduler.
    settings
        What the workers go by.
    """

    def __init__(self, scheduler: Scheduler, settings: Settings) -> None:
        self.scheduler = scheduler
        # Not all of them: a policy may be registered here and unknown there.
        ours = ("quota_", "store_", "interrupt", "adopt", "kernels_")
        chosen = {k: v for k, v in vars(settings).items() if k.startswith(ours)}
        self._plugin = pickle.dumps(_Parcel(chosen))
        self._under_way: set[asyncio.Future[Any]] = set()

    async def add(self) -> None:
        """Put the plugin on all workers that there are and that come.

        Returns when they have it, but does not wait for one that hangs.
        """
        self.scheduler.worker_plugins[NAME] = self._plugin
        self._tell({"op": "plugin-add", "plugin": self._plugin, "name": NAME})
        await self.done()

    def remove(self) -> None:
        """Take the plugin from all workers, in the background. Idempotent."""
        # Not what another registration has put there since.
        if self.scheduler.worker_plugins.get(NAME) is self._plugin:
            del self.scheduler.worker_plugins[NAME]
            self._tell({"op": "plugin-remove", "name": NAME})

    async def done(self) -> None:
        """Wait until all workers have heard, but not for one that hangs."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=_PATIENCE)

    def _tell(self, message: dict[str, Any]) -> None:
        task = asyncio.create_task(self._broadcast(message, _last.get(self.scheduler)))
        _last[self.scheduler] = task
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _broadcast(self, message: dict[str, Any], before: asyncio.Task[None] | None) -> None:
        # Each message takes a connection of its own: a removal that is overtaken would take out
        # what has come since.
        if before is not None and not before.done():
            await asyncio.wait([before], timeout=_PATIENCE)
        # A worker that leaves meanwhile is no error.
        await self.scheduler.broadcast(msg=message, on_error="ignore")
