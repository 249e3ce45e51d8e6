"""Restarts a scheduler on purpose: `restart_scheduler`."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from distributed.core import rpc
from distributed.security import Security

from dask_marsched.host.restart.process import RESTART


class RefusedRestart(Exception):
    """The scheduler cannot restart; the message says why."""


def restart_scheduler(address: str, timeout: float) -> float:
    """Restart the scheduler at an address; return after how many seconds it was back.

    Raises
    ------
    RefusedRestart
        It keeps no journal, or its process cannot be started again.
    OSError
        It cannot be reached, or is not back in time.
    """
    return asyncio.run(_restart(address, timeout))


async def _restart(address: str, timeout: float) -> float:
    before = await _identity(address, timeout)
    answer = await _call(address, timeout, RESTART)
    if not answer:
        raise RefusedRestart(
            "it keeps no journal: start it with --preload dask_marsched --marsched-journal DIR"
        )
    if answer["status"] != "OK":
        raise RefusedRestart(answer["reason"])
    begun = time.monotonic()
    while (left := begun + timeout - time.monotonic()) > 0:
        try:
            if await _identity(address, min(left, 1.0)) != before:
                return time.monotonic() - begun
        except OSError:
            await asyncio.sleep(0.05)
    raise TimeoutError(f"it was told to, but is not back after {timeout:g} s")


async def _identity(address: str, timeout: float) -> str:
    return str((await _call(address, timeout, "identity", n_workers=0))["id"])


async def _call(address: str, timeout: float, name: str, **kwargs: Any) -> Any:
    """Call a scheduler on a connection of its own."""
    security = Security().get_connection_args("client")
    async with rpc(address, timeout=timeout, connection_args=security) as remote:
        try:
            return await asyncio.wait_for(getattr(remote, name)(**kwargs), timeout)
        except asyncio.TimeoutError:  # it says nothing of itself
            raise TimeoutError(f"no answer within {timeout:g} s") from None
