"""Having all of a worker's results in shared memory, as far as that costs little.

Large arrays are there as they are made, or a copy takes their place. Of whatever else there is only
the arrays are, and the rest is in memory twice.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from dask.sizeof import sizeof
from dask.typing import Key
from numpy.typing import NDArray

from dask_marsched.store import scattered
from dask_marsched.store.arena import Arena, SharedChunk
from dask_marsched.store.frames import is_data, is_plain_array, to_frames
from dask_marsched.store.grants import LEAST
from dask_marsched.store.segment import Handle

if TYPE_CHECKING:
    from dask_marsched.host.worker.publishing import Publisher

#: Results other than large arrays are in memory twice while they are kept for others: up to this
#: share of all results, or so many bytes.
_TWICE, _TWICE_AT_LEAST = 0.05, 8 * 1024 * 1024
#: To serialize what is no array takes several times as long as to copy it.
_SERIALIZED = 4
#: To copy so many bytes takes less than to see to it later.
_LITTLE = 64 * 1024
#: More is not copied, bytes.
_MOST_COPIED = 16 * 1024 * 1024
#: Seconds after which Dask has stored a result. Where the event loop is late, twice as long.
_SETTLED = 0.005


class _Cost(NamedTuple):
    """What has to be copied to keep a result, bytes: of arrays, and of whatever else."""

    arrays: int
    others: int

    @property
    def copied(self) -> int:
        return self.arrays + self.others

    @property
    def takes(self) -> int:
        """How many bytes of an array could be copied in that time."""
        return self.arrays + _SERIALIZED * self.others


class ResultRetainer:
    """Keeps the results of a worker for those who take over from it.

    Parameters
    ----------
    publisher : Publisher
        Publishes arrays, and tells of what is kept.
    arena : Arena
        Where it is kept.
    caught : callable
        Told of exceptions of ours: (where, exception).
    """

    def __init__(
        self, publisher: Publisher, arena: Arena, caught: Callable[[str, Exception], None]
    ) -> None:
        self._publisher = publisher
        self._store = publisher.store
        self._upkeep = publisher.upkeep
        self._arena = arena
        self._caught = caught
        self._kept: dict[Key, list[SharedChunk]] = {}
        self._twice: dict[Key, int] = {}
        self._counting = threading.Lock()
        self._waiting: deque[Key] = deque()
        self._draining: asyncio.Task[None] | None = None
        self._closed = False

    def close(self) -> None:
        """Keep nothing any more but arrays."""
        self._closed = True
        for key in list(self._kept):
            self.let_go(key)

    @property
    def twice(self) -> int:
        """Bytes that are in memory twice."""
        with self._counting:
            return sum(self._twice.values())

    def made(self, key: Key, value: object) -> None:
        """Keep a result of which little has to be copied; see to others when they are stored.

        Of what is kept now the scheduler hears together with the result.
        """
        if not _is_large_array(value) and is_data(value):
            cost = self._cost(value)
            if cost.copied <= _LITTLE and self._affords(cost):
                self._hold(key, cost, self._put(value))
        # Not now: its thread has the next task sooner. What is gone before its turn comes is not
        # copied. To wait for more of that saved nothing, and what is lost meanwhile takes all it
        # was made from to make again.
        self._settle(key)

    def let_go(self, key: Key) -> None:
        """Keep a result in shared memory no longer: the worker does not have it in memory."""
        self._kept.pop(key, None)
        with self._counting:
            self._twice.pop(key, None)

    async def drained(self) -> None:
        """Wait until what is stored is kept."""
        if self._draining is not None:
            await self._draining

    # -- what is stored --------------------------------------------------------------------

    def _settle(self, key: Key, *, again: bool = True) -> None:
        asyncio.get_running_loop().call_later(_SETTLED, self._settled, key, again)

    def _settled(self, key: Key, again: bool) -> None:
        """Keep a result that is there, when those before it have been."""
        if self._closed:
            return
        if key not in self._store.fast:
            if again:
                self._settle(key, again=False)
            else:
                self.let_go(key)
        elif key not in self._kept:
            self._waiting.append(key)
            if self._draining is None or self._draining.done():
                self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        while self._waiting and not self._closed:
            try:
                await self._keep(self._waiting.popleft())
            except Exception as error:
                self._caught("keep", error)

    async def _keep(self, key: Key) -> None:
        """Have a result in shared memory as long as the worker has it, and tell where."""
        value = self._store.in_memory(key)
        if value is None or await self._publisher.is_told(key, value):
            return
        # An array takes the place of the one that it is a copy of. Small ones would take a mapping
        # each, of which a process may not have any number.
        if _is_large_array(value):
            if self._may_exchange(value.nbytes) and self._upkeep.affords(value.nbytes):
                self._upkeep.kept(value.nbytes)
                await self._publisher.keep_array(key, value)
        elif is_data(value) and self._affords(cost := self._cost(value)):
            found = await self._publisher.copy(key, cost.copied, self._put, value)
            # Another thread may evict the value: before the look at what is there, or after it,
            # and then it lets go of the chunks.
            self._hold(key, cost, found)
            if found is not None and cost.arrays >= LEAST:
                self._exchange(key, value, *found)
            elif self._store.in_memory(key) is not value:
                self.let_go(key)

    def _may_exchange(self, nbytes: int) -> bool:
        """Whether a copy may take the place of what is stored.

        Until it is copied it is in memory twice. Of a size that comes again the next is made here;
        one that comes once is often the last of all, and gone in a moment.
        """
        return nbytes <= _MOST_COPIED and self._publisher.has_room()

    def _cost(self, value: object) -> _Cost:
        arrays, here = scattered.array_bytes(self._arena, value)
        return _Cost(arrays - here, max(0, sizeof(value) - arrays))

    def _affords(self, cost: _Cost) -> bool:
        if cost.arrays >= LEAST and not self._may_exchange(cost.arrays):
            return False
        twice = cost.others if cost.arrays >= LEAST else cost.copied
        most = max(_TWICE_AT_LEAST, int(_TWICE * self._store.held))
        return self.twice + twice <= most and self._upkeep.affords(cost.takes)

    def _put(self, value: object) -> tuple[Handle, list[SharedChunk]] | None:
        try:
            header, frames = to_frames(value)
        except Exception:  # it cannot be serialized: Dask says so where it has to be
            return None
        return scattered.put(self._arena, header, frames)

    def _hold(self, key: Key, cost: _Cost, found: tuple[Handle, list[SharedChunk]] | None) -> None:
        """Keep chunks that nothing which the worker stores keeps, and tell of them."""
        self._upkeep.kept(cost.takes)
        self.let_go(key)
        if found is None:
            return
        handle, chunks = found
        self._kept[key] = chunks
        with self._counting:
            self._twice[key] = cost.copied
        self._publisher.ahead += 1
        self._publisher.tell(key, handle, chunks[0].stamp)

    def _exchange(self, key: Key, value: object, handle: Handle, chunks: list[SharedChunk]) -> None:
        """Let the copies of arrays take their places in a collection that is stored."""
        new = scattered.exchanged(value, handle, chunks)
        if self._store.in_memory(key) is not value:
            self.let_go(key)
            return
        self._store.exchange(key, value, new)
        with self._counting:
            self._twice.pop(key, None)


def _is_large_array(value: object) -> TypeGuard[NDArray[Any]]:
    return is_plain_array(value) and value.nbytes >= LEAST
