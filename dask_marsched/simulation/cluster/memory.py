"""Simulates the memory of a worker: its results, spilling, and when it pauses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import dask
from dask.sizeof import sizeof
from dask.utils import parse_timedelta

from dask_marsched.simulation.cluster.clock import EventQueue

#: The key for pieces of shuffled partitions in the memory of a worker.
PIECES = "p2p-pieces"


class Result:
    """The result of a task; only its size is known."""

    __slots__ = ("nbytes",)

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


@sizeof.register(Result)  # type: ignore[untyped-decorator]  # untyped there
def _sizeof_result(result: Result) -> int:
    return result.nbytes


def _threshold(name: str, memory_limit: int) -> float:
    """Return a threshold of ``distributed.worker.memory`` in bytes; infinite if switched off."""
    value = dask.config.get(f"distributed.worker.memory.{name}")
    return math.inf if value is False or value is None else value * memory_limit


class SpillingStore(dict[Any, Result]):
    """The results of a worker, in memory or on disk by the rules of distributed's `zict.Buffer`.

    Above ``target`` bytes the least recently used result goes to disk; a larger one never stays in
    memory. ``changed`` gets a key and its bytes, negative if it leaves memory; ``moved`` gets the
    bytes written to disk, negative if read. ``fast`` has the bytes of results in memory, oldest
    first.
    """

    def __init__(
        self, target: float, changed: Callable[[Any, int], None], moved: Callable[[int], None]
    ) -> None:
        super().__init__()
        self.fast: dict[Any, int] = {}
        self._target = target
        self._nbytes = 0
        self._changed = changed
        self._moved = moved

    def __setitem__(self, key: Any, result: Result) -> None:
        super().__setitem__(key, result)
        self._add(key, result.nbytes)
        if result.nbytes > self._target:
            self.evict(key)
        self._make_room()

    def __getitem__(self, key: Any) -> Result:
        result = super().__getitem__(key)
        if key in self.fast:
            self.fast[key] = self.fast.pop(key)
        else:
            self._moved(-result.nbytes)
            if result.nbytes <= self._target:
                self._add(key, result.nbytes)
                self._make_room()
        return result

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)
        if key in self.fast:
            self._drop(key)

    def evict(self, key: Any = None) -> None:
        """Write a result to disk, by default the least recently used one."""
        self._moved(self._drop(next(iter(self.fast)) if key is None else key))

    def _make_room(self) -> None:
        while self._nbytes > self._target:
            self.evict()

    def _add(self, key: Any, nbytes: int) -> None:
        self.fast[key] = nbytes
        self._nbytes += nbytes
        self._changed(key, nbytes)

    def _drop(self, key: Any) -> int:
        nbytes = self.fast.pop(key)
        self._nbytes -= nbytes
        self._changed(key, -nbytes)
        return nbytes


class MemoryMonitor:
    """Lets a worker spill and pause by the rules of ``distributed``'s memory manager.

    The modelled memory is results and what running tasks and incoming transfers are about to add.
    Above ``target`` results go to disk; a process above ``spill`` spills, above ``pause`` pauses,
    and above ``terminate`` would be ended by its nanny. ``pause`` gets True to pause the worker and
    False to continue.
    """

    def __init__(
        self,
        queue: EventQueue,
        limit: int,
        changed: Callable[[Any, int], None],
        disk: Callable[[int], None],
        pause: Callable[[bool], None],
    ) -> None:
        self._queue = queue
        target, self._spill_above, self._pause_above, self._terminate_above = (
            _threshold(name, limit) for name in ("target", "spill", "pause", "terminate")
        )
        #: As in distributed: without a target, spilling stops where it starts.
        self._evict_to = min(target, self._spill_above)
        self._interval = parse_timedelta(
            dask.config.get("distributed.worker.memory.monitor-interval")
        )
        self._watched = min(self._spill_above, self._pause_above)
        self._changed = changed
        self._pause = pause
        self._planned = False
        self._paused = False
        self._promised = 0
        self.held = 0
        self.most = 0
        self.store = SpillingStore(target, self.hold, disk)

    @property
    def process(self) -> int:
        """Modelled bytes of the process."""
        return self.held + self._promised

    @property
    def exceeded(self) -> bool:
        """Whether a nanny would have ended the worker."""
        return self.most > self._terminate_above

    def promise(self, nbytes: int) -> None:
        """Note bytes that come into memory before they are results; negative when they are."""
        self._promised += nbytes
        self._watch()

    def hold(self, key: Any, nbytes: int) -> None:
        """Note bytes that came into memory (> 0) or left it (< 0), results or not."""
        self.held += nbytes
        self._changed(key, nbytes)
        self._watch()

    def lose_all(self) -> None:
        """Forget everything in memory, since the process dies."""
        for key, nbytes in self.store.fast.items():
            self.held -= nbytes
            self._changed(key, -nbytes)
        if self.held:
            self.hold(PIECES, -self.held)

    def _watch(self) -> None:
        process = self.held + self._promised
        if process > self.most:
            self.most = process
        if not self._planned and (process > self._watched or self._paused):
            self._planned = True
            look = (math.floor(self._queue.now / self._interval) + 1) * self._interval
            self._queue.at(look, self._look, daemon=True)

    def _look(self) -> None:
        self._planned = False
        paused = self.process > self._pause_above
        if paused != self._paused:
            self._paused = paused
            self._pause(paused)
        if self.process > self._spill_above:
            while self.process > self._evict_to and self.store.fast:
                self.store.evict()
        self._watch()
