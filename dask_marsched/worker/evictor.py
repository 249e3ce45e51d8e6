"""Evicts a worker's results to disk, in threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from concurrent.futures import Executor
from typing import Any

from dask.typing import Key
from distributed import Worker
from distributed.core import context_meter_to_server_digest
from distributed.metrics import context_meter
from distributed.utils import run_in_executor_with_context

from dask_marsched.fallbacks.counters import Counters
from dask_marsched.host.worker.adapter import WorkerAdapter
from dask_marsched.host.worker.data import WorkerStore
from dask_marsched.policies.eviction import Resident, coldest

#: Seconds between a failed eviction, for example to a full disk, and the next attempt.
_RETRY = 1.0


class Evictor:
    """Writes the coldest results of a worker to disk, in threads.

    In `counts`, small views were ``parted``: copied so that their base can be freed.
    """

    def __init__(self, host: WorkerAdapter, counters: Counters) -> None:
        self.host = host
        self.counters = counters
        counted = ("evictions", "evicted_bytes", "failed_evictions", "parted")
        self.counts = dict.fromkeys(counted, 0)
        self._under_way: set[Key] = set()
        self._leaving = 0
        self._tasks: set[asyncio.Future[None]] = set()
        self._not_before = 0.0

    def evict(self, nbytes: int, keep: Collection[Key], before: Any) -> bool:
        """Start evictions until this many bytes are leaving; return whether any are.

        Results in `keep`, in use, or read before the priority `before` stay.
        """
        nbytes -= self._leaving
        if nbytes > 0 and time.monotonic() >= self._not_before:
            stay = self.host.pinned().union(keep, self._under_way)
            victims = coldest(self.host.residents(), nbytes, stay, before)
            if victims:
                self._leaving += sum(v.nbytes for v in victims)
                self._under_way.update(key for v in victims for key in (*v.keys, *v.staying))
                task = asyncio.ensure_future(self._run(victims))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return bool(self._under_way)

    async def _run(self, victims: list[Resident]) -> None:
        victims = victims[::-1]
        try:
            while victims and await self._evict(victims[-1]):
                self._end(victims.pop())
                self.host.poke_soon()
        except Exception as error:
            if self.host.installed:
                self.counters.caught("evict", error)
        finally:
            for victim in victims:
                self._end(victim)
            if self.host.installed:
                self.host.poke_soon()

    async def _evict(self, victim: Resident) -> bool:
        """Write the results that share memory; return whether all could be written."""
        loop, store = asyncio.get_running_loop(), self.host.store
        for key in victim.keys:
            with context_meter.clear_callbacks():  # of the task or request that needs the room
                nbytes = await _write(self.host.worker, self.host.disk, store, key)
            if nbytes < 0:
                self.counts["failed_evictions"] += 1
                self._not_before = time.monotonic() + _RETRY
                return False
            self.counts["evictions"] += 1
            self.counts["evicted_bytes"] += nbytes
        if victim.staying:
            await loop.run_in_executor(self.host.disk, store.copy_views, victim.staying)
            self.counts["parted"] += len(victim.staying)
        return True

    def _end(self, victim: Resident) -> None:
        self._leaving -= victim.nbytes
        self._under_way.difference_update(victim.keys, victim.staying)


@context_meter_to_server_digest("memory-monitor")
async def _write(worker: Worker, disk: Executor, store: WorkerStore, key: Key) -> int:
    return await run_in_executor_with_context(disk, store.evict, key)
