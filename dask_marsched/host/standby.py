"""A process in wait: what a nanny starts in place of a worker that died is there at once.

A new process imports for one to two seconds, on a processor that those who go on need most then.
Here a fork server of the nanny's process has all that imported before anything happens, and the
next worker is forked from it. Dask's own setting for that, `multiprocessing-method: forkserver`,
has to be there before the nanny starts; this reaches nannies that run.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import sys
from collections.abc import Iterator
from multiprocessing import forkserver
from typing import Any

import dask
from distributed import Nanny, Worker
from distributed.core import Status
from distributed.diagnostics.plugin import NannyPlugin
from distributed.utils import get_mp_context

from dask_marsched.host.nanny import run_in_nanny

NAME = "marsched-standby"
_METHOD = "distributed.worker.multiprocessing-method"
_FORKSERVER = "forkserver"
#: What is imported beforehand. Where one is not installed, the server goes on without it.
_IMPORTED = ["distributed", "numpy", "dask.array", "dask_marsched.worker_plugin"]


class _Forking:
    """Has processes forked from the server meanwhile. Several nannies of a process may at once."""

    def __init__(self) -> None:
        self._users = 0
        self._before: Any = None

    def is_usual(self) -> bool:
        """Tell whether processes are forked from the server in any case."""
        method = self._before if self._users else dask.config.get(_METHOD)
        return bool(method == _FORKSERVER)

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        if not self._users:
            self._before = dask.config.get(_METHOD)
            dask.config.set({_METHOD: _FORKSERVER})
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                dask.config.set({_METHOD: self._before})


_forking = _Forking()


class Standby(NannyPlugin):
    """Keeps a fork server for a nanny's next worker."""

    name = NAME

    async def setup(self, nanny: Nanny) -> None:
        """Start the server, and have the nanny use it."""
        if _forking.is_usual():
            return
        with _forking():
            # The first time, Dask imports in this process what it has the server import.
            await asyncio.to_thread(get_mp_context)
        forkserver.set_forkserver_preload(_IMPORTED)
        await asyncio.to_thread(forkserver.ensure_running)
        stock = type(nanny).instantiate

        async def instantiate() -> Status:
            with _forking():
                return await stock(nanny)

        vars(nanny)["instantiate"] = instantiate

    def teardown(self, nanny: Nanny) -> None:
        """Have the nanny start processes as before.

        The server ends with the nanny's process: workers that were forked from it need it.
        """
        vars(nanny).pop("instantiate", None)


async def _stand_by(dask_worker: Nanny) -> None:
    # Run in the nanny.
    if NAME not in dask_worker.plugins:
        answer: Any = await dask_worker.plugin_add(plugin=Standby(), name=NAME)
        if answer["status"] != "OK":
            dask_worker.plugins.pop(NAME, None)
            raise OSError(f"the nanny has no fork server: {answer.get('text', answer)}")


async def _stand_down(dask_worker: Nanny) -> None:
    if NAME in dask_worker.plugins:
        await dask_worker.plugin_remove(NAME)


async def ask_to_stand_by(worker: Worker) -> None:
    """Have a worker's nanny keep the next process ready.

    A nanny that starts answers nobody until its worker has started: do not await this there.

    Raises
    ------
    OSError
        If the worker has no nanny, or this one cannot.
    """
    if _FORKSERVER not in multiprocessing.get_all_start_methods():
        raise OSError("there are no fork servers on this system")
    await run_in_nanny(worker, _stand_by)


async def ask_to_stand_down(worker: Worker) -> None:
    """Have a worker's nanny start processes as before.

    Raises
    ------
    OSError
        If the nanny does not answer.
    """
    await run_in_nanny(worker, _stand_down)


def seed_anew() -> None:
    """Give this process random numbers of its own, if it was forked from a server.

    NumPy's global generator got its state as the server imported it; all that are forked from it
    would draw the same.
    """
    if forkserver.get_inherited_fds() is not None and "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
