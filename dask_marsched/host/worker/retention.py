"""Retains a worker's results in shared memory, so that peers can take over if it dies."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard

from dask.sizeof import sizeof
from dask.typing import Key
from numpy.typing import NDArray

from dask_marsched.host.worker.publishing import Publisher
from dask_marsched.store import scattered
from dask_marsched.store.arena import Arena, SharedChunk
from dask_marsched.store.array_memory import LEAST_NBYTES
from dask_marsched.store.frames import is_data, is_plain_array, to_frames
from dask_marsched.store.segment import Handle

#: Most bytes that exist both in private and in shared memory: the larger of this share of all
#: results and this many bytes.
_TWICE, _TWICE_AT_LEAST = 0.05, 8 * 1024 * 1024
#: Serializing an object other than an array takes this many times as long as copying an array.
_SERIALIZED = 4
#: Up to this many bytes are copied at once: deferring the copy would cost more.
_LITTLE = 64 * 1024
#: Largest array that is copied, bytes.
_MOST_COPIED = 16 * 1024 * 1024
#: Seconds within which Dask normally stores a result. A late event loop gets twice as long.
_SETTLED = 0.005


class _Cost(NamedTuple):
    """Bytes to copy to retain a result: those of arrays, and those of other objects."""

    arrays: int
    others: int

    @property
    def copied(self) -> int:
        return self.arrays + self.others

    @property
    def effort(self) -> int:
        """Bytes of an array that would take as long to copy."""
        return self.arrays + _SERIALIZED * self.others


class _Copy(NamedTuple):
    """The outcome of copying a result, and the processor time that it took."""

    found: tuple[Handle, list[SharedChunk]] | None
    seconds: float


class ResultRetainer:
    """Retains the results of a worker for the workers that take over from it."""

    def __init__(
        self, publisher: Publisher, arena: Arena, caught: Callable[[str, Exception], None]
    ) -> None:
        self._publisher = publisher
        self._store = publisher.store
        self._budget = publisher.budget
        self._arena = arena
        self._caught = caught
        self._retained: dict[Key, tuple[Handle, list[SharedChunk]]] = {}
        self._twice: dict[Key, int] = {}
        self._twice_lock = threading.Lock()
        #: Bytes that exist twice in memory.
        self.twice = 0
        self._waiting: deque[Key] = deque()
        self._draining: asyncio.Task[None] | None = None
        self._closed = False

    def close(self) -> None:
        """Release all copies; arrays that replaced stored ones stay."""
        self._closed = True
        for key in list(self._retained):
            self.let_go(key)

    def announce_again(self) -> None:
        """Announce all copies."""
        for key, (handle, chunks) in list(self._retained.items()):  # any thread may remove some
            self._publisher.announce(key, handle, chunks[0].stamp)

    def made(self, key: Key, value: object) -> None:
        """Retain a result at once if little has to be copied, else after it is stored."""
        large = value.nbytes if _is_large_array(value) else 0
        if not self._budget.affords(large):
            return
        # The scheduler learns of what is retained at once together with the result.
        if not large and is_data(value):
            cost = self._cost(value)
            if cost.copied <= _LITTLE and self._affords(cost):
                self._hold(key, cost, self._put(value))
        # Deferred, so that the thread gets its next task first, and short-lived results are never
        # copied. A longer delay saved nothing, and leaves results unprotected.
        self._settle(key)

    def let_go(self, key: Key) -> None:
        """Release the copy of a result that has left the worker's memory."""
        self._retained.pop(key, None)
        self._exists_twice(key, 0)

    def _exists_twice(self, key: Key, nbytes: int) -> None:
        with self._twice_lock:
            self.twice += nbytes - self._twice.pop(key, 0)
            if nbytes:
                self._twice[key] = nbytes

    def _settle(self, key: Key, *, again: bool = True) -> None:
        asyncio.get_running_loop().call_later(_SETTLED, self._settled, key, again)

    def _settled(self, key: Key, again: bool) -> None:
        if self._closed:
            return
        if key not in self._store.fast:
            if again:
                self._settle(key, again=False)
            else:
                self.let_go(key)
        elif key not in self._retained:
            self._waiting.append(key)
            if self._draining is None or self._draining.done():
                self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        while self._waiting and not self._closed:
            try:
                await self._retain(self._waiting.popleft())
            except Exception as error:
                self._caught("keep", error)

    async def _retain(self, key: Key) -> None:
        value = self._store.in_memory(key)
        if value is None or await self._publisher.announce_published(key, value):
            return
        # Only large arrays are replaced: each takes a mapping, and a process may have 65530.
        if _is_large_array(value):
            if self._may_exchange(value.nbytes) and self._budget.affords(value.nbytes):
                self._budget.kept(value.nbytes)
                await self._publisher.keep_array(key, value)
        elif is_data(value) and self._budget.affords() and self._affords(cost := self._cost(value)):
            copy = await self._publisher.copy(key, cost.copied, self._put, value)
            # Another thread may evict the value: before the check below, or after it, and then
            # `let_go` releases the chunks.
            self._hold(key, cost, copy)
            if copy.found is not None and cost.arrays >= LEAST_NBYTES:
                self._exchange(key, value, *copy.found)
            elif self._store.in_memory(key) is not value:
                self.let_go(key)

    def _may_exchange(self, nbytes: int) -> bool:
        """Whether an array may be copied: it exists twice until the copy has replaced it."""
        # Arrays of a size that recurs are soon allocated in shared memory, and need no copy.
        return nbytes <= _MOST_COPIED and self._publisher.has_room()

    def _cost(self, value: object) -> _Cost:
        arrays, here = scattered.array_bytes(self._arena, value)
        return _Cost(arrays - here, max(0, sizeof(value) - arrays))

    def _affords(self, cost: _Cost) -> bool:
        if cost.arrays >= LEAST_NBYTES and not self._may_exchange(cost.arrays):
            return False
        twice = cost.others if cost.arrays >= LEAST_NBYTES else cost.copied
        most = max(_TWICE_AT_LEAST, int(_TWICE * self._store.held))
        return self.twice + twice <= most and self._budget.affords(cost.effort)

    def _put(self, value: object) -> _Copy:
        begun = time.thread_time()
        try:
            header, frames = to_frames(value)
        except Exception:  # not serializable; Dask raises the error when it has to be sent
            return _Copy(None, time.thread_time() - begun)
        found = scattered.put(self._arena, header, frames)
        return _Copy(found, time.thread_time() - begun)

    def _hold(self, key: Key, cost: _Cost, copy: _Copy) -> None:
        """Hold the chunks of a copy that no stored value refers to, and announce them."""
        self._budget.kept(cost.effort, copy.seconds)
        self.let_go(key)
        if copy.found is None:
            return
        handle, chunks = copy.found
        self._retained[key] = copy.found
        self._exists_twice(key, cost.copied)
        self._publisher.ahead += 1
        self._publisher.announce(key, handle, chunks[0].stamp)

    def _exchange(self, key: Key, value: object, handle: Handle, chunks: list[SharedChunk]) -> None:
        new = scattered.exchanged(value, handle, chunks)
        if self._store.in_memory(key) is not value:
            self.let_go(key)
            return
        self._store.fast.exchange(key, value, new)
        self._exists_twice(key, 0)


def _is_large_array(value: object) -> TypeGuard[NDArray[Any]]:
    return is_plain_array(value) and value.nbytes >= LEAST_NBYTES
