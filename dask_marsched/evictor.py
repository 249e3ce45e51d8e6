"""Evictions of a worker's results to disk: which, in what order, and beside the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from dask.typing import Key

from dask_marsched.counters import Counters
from dask_marsched.host.worker import WorkerAdapter
from dask_marsched.policies.eviction import coldest

#: Seconds without an attempt to evict after one failed: the disk is full, say.
_RETRY = 1.0


@dataclass
class EvictionCounts:
    """Counts of one worker, results and bytes."""

    evictions: int = 0
    evicted_bytes: int = 0
    failed_evictions: int = 0


class Evictor:
    """Writes the coldest results of a worker to disk, in threads.

    Parameters
    ----------
    host
        The worker.
    counters
        Where exceptions of ours are counted.
    """

    def __init__(self, host: WorkerAdapter, counters: Counters) -> None:
        self.host = host
        self.counters = counters
        self.counts = EvictionCounts()
        self._under_way: dict[Key, int] = {}
        self._tasks: set[asyncio.Future[None]] = set()
        self._not_before = 0.0

    def evict(self, nbytes: int, keep: Collection[Key], before: Any) -> bool:
        """See to it that so many bytes are being evicted; whether any are.

        Parameters
        ----------
        nbytes
            How many.
        keep
            Keys that must stay, beside those in use.
        before
            Where given, results that are read before this priority stay too.
        """
        nbytes -= sum(self._under_way.values())
        if nbytes > 0 and time.monotonic() >= self._not_before:
            stay = self.host.pinned().union(keep, self._under_way)
            victims = coldest(self.host.residents(), nbytes, stay, before)
            if victims:
                self._under_way.update((v.key, v.nbytes) for v in victims)
                task = asyncio.ensure_future(self._run([v.key for v in victims]))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return bool(self._under_way)

    async def _run(self, keys: list[Key]) -> None:
        loop, evict = asyncio.get_running_loop(), self.host.store.evict_key
        try:
            for key in keys:
                nbytes = await loop.run_in_executor(self.host.disk, evict, key)
                self._under_way.pop(key, None)
                if nbytes < 0:
                    self.counts.failed_evictions += 1
                    self._not_before = time.monotonic() + _RETRY
                    break
                self.counts.evictions += 1
                self.counts.evicted_bytes += nbytes
                self.host.poke_soon()
        except Exception as error:
            if self.host.installed:
                self.counters.caught("evict", error)
        finally:
            for key in keys:
                self._under_way.pop(key, None)
            if self.host.installed:
                self.host.poke_soon()
