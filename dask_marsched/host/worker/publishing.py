"""Putting a worker's results where its neighbours can map them: when asked, or as they are made."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

from dask.sizeof import sizeof
from dask.typing import Key
from distributed import Worker
from distributed.core import Status
from distributed.worker_state_machine import ExecuteSuccessEvent
from numpy.typing import NDArray

from dask_marsched.host.scheduler.task_hints import is_shared
from dask_marsched.host.worker.data import WorkerStore
from dask_marsched.host.worker.retention import ResultRetainer
from dask_marsched.policies.sharing import ShareModel, Upkeep
from dask_marsched.store.arena import Arena, SharedChunk
from dask_marsched.store.frames import from_frames, is_plain_array, to_frames
from dask_marsched.store.grants import filled, make_arrays_here, sizes_wanted
from dask_marsched.store.identities import IdentityMap
from dask_marsched.store.mapping import COPIED_AT_ONCE, Mapping
from dask_marsched.store.segment import Handle

#: Share of the arena's cap that the results of a worker with room take at most.
_ROOMY = 0.5

#: Seconds after which what is released is given back, together with what else is until then.
_SOON = 0.002


class Published(NamedTuple):
    """Where an object in memory can be mapped from, and what tells whether it was written to.

    That is our own mapping of it, or the chunk, where the object was made in shared memory.
    The stamp tells whether it still can when its owner is not there to say so; 0 if not known.
    """

    handle: Handle
    mapping: Mapping | SharedChunk
    stamp: int = 0
    #: nobody had asked for it
    ahead: bool = False


class Publisher:
    """Publishes a worker's results in its arena.

    Parameters
    ----------
    worker
        The worker.
    store : WorkerStore
        Its data.
    least : int
        Results of fewer bytes are not published unasked.
    caught : callable
        Told of exceptions of ours: (where, exception).

    Attributes
    ----------
    sharing : ShareModel
        What is published unasked.
    upkeep : Upkeep
        What is kept in case the worker dies.
    ahead, ahead_read : int
        How many results were, and how many of these a peer has asked for since.
    """

    def __init__(
        self,
        worker: Worker,
        store: WorkerStore,
        *,
        least: int,
        caught: Callable[[str, Exception], None],
    ) -> None:
        self.worker: Any = worker
        self.store = store
        self.least = least
        self.sharing = ShareModel()
        self.upkeep = Upkeep()
        self.ahead = self.ahead_read = 0
        self._arena: Arena | None = None
        self._spare = self._filled = 0
        self._announce: Callable[[Key, Handle, int], None] | None = None
        self.keeper: ResultRetainer | None = None
        self._tidies = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._caught = caught
        self._published: IdentityMap[Published] = IdentityMap()
        self._asked: IdentityMap[bool] = IdentityMap()
        self._publishing: dict[Key, asyncio.Future[Any]] = {}
        # One: copies in parallel are no faster, and tasks need the processors
        self._copier = ThreadPoolExecutor(1, thread_name_prefix="marsched-publish")

    def install(self, arena: Arena) -> None:
        """Look at each result of the worker before it is stored."""
        worker = self.worker
        self._arena = arena
        self._spare = arena.spare
        # It may be that of the quota; what comes last goes first.
        self._execute_there = vars(worker).get("execute")
        self._stock: Callable[..., Any] = worker.execute
        worker.execute = self._execute

    def outlive(
        self, arena: Arena, announce: Callable[[Key, Handle, int], None], *, all_of_them: bool
    ) -> None:
        """Tell where published results can be had; publish all, as far as that costs little."""
        self._announce = announce
        if all_of_them:
            self.keeper = ResultRetainer(self, arena, self._caught)
            self.store.fast.gone = self._gone

    def uninstall(self) -> None:
        """Restore the worker. What its data are views of stays published."""
        self.store.fast.gone = None
        if self.keeper is not None:
            self.keeper.close()
            self.keeper = None
        del self.worker.execute
        if self._execute_there is not None:
            self.worker.execute = self._execute_there

    def give_back(self) -> None:
        """Have memory that nothing has been published in for a while given back to the system."""
        if self._arena is not None and self._arena.filled > self._arena.live:
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                self._copier.submit(self._trim, self._arena)

    def _trim(self, arena: Arena) -> None:
        try:
            arena.trim_unneeded()
        except OSError as error:
            self._caught("trim", error)

    def _gone(self, key: Key) -> None:
        """Take note that a result leaves the memory, in any thread."""
        if self.keeper is not None:
            self.keeper.let_go(key)
        if self._loop is not None and not self._tidies:
            # malloc gives memory back at once. When the next operand ends is late.
            self._tidies = True
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._loop.call_later, _SOON, self._tidy)

    def _tidy(self) -> None:
        self._tidies = False
        self._grant()

    def _grant(self) -> None:
        """Have the next arrays made in shared memory, and what is too much for them given back."""
        arena, sizes = self._arena, sizes_wanted()
        before, self._filled = self._filled, filled()
        self.upkeep.filled(self._filled - before)
        if arena is not None and (sizes or arena.has_excess):
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                self._copier.submit(self._grant_them, arena, sizes)

    def _grant_them(self, arena: Arena, sizes: list[int]) -> None:
        try:
            # Addresses cost nothing, and most operations make more than one array.
            arena.grant(4 * sizes)
            arena.recycle()
            arena.trim_excess()
        except Exception as error:
            self._caught("grant", error)

    def close(self) -> None:
        """Publish no more. Idempotent."""
        self._copier.shutdown(wait=False)

    # -- when a peer asks ------------------------------------------------------------------

    async def publish(self, key: Key) -> tuple[Handle, object] | None:
        """Return where a key can be mapped from, and what keeps it there; None if nowhere."""
        while key in self._publishing:  # by another peer's request
            await asyncio.wait([self._publishing[key]])
        # What is on disk would take memory that was scarce a moment ago
        value = self.store.in_memory(key)
        known = self._published.get(value) or self.store.foreign.get(value)
        if value is not None and value not in self._asked:
            self._asked.set(value, True)
            self.sharing.asked(self._kind(key))
            self.ahead_read += known is not None and known.ahead
        if known is not None and not known.mapping.modified():
            return known.handle, value
        if value is None or self.worker.status != Status.running:
            return None
        chunk, view, mapping = await self._put(key, value)
        if chunk is None:
            return None
        if view is not None:
            self._published.set(view, Published(chunk.handle, mapping, chunk.stamp))
            self._asked.set(view, True)
            self.store.exchange(key, value, view)
            # The chunk from before, if there was one, ends with the value from before.
            self.tell(key, chunk.handle, chunk.stamp)
        # To give the private memory back takes a fifth of the time of the copy: not while the
        # peer waits.
        return chunk.handle, (chunk, value)

    # -- before anybody asks ---------------------------------------------------------------

    async def _execute(self, key: Key, *, stimulus_id: str) -> Any:
        self._loop = asyncio.get_running_loop()
        at_little_cost = self.upkeep.affords() if self.keeper else self.has_room()
        if at_little_cost or self._will_be_read(key, self._kind(key)):
            make_arrays_here(self._spare)  # in the context of this one task, and so of its thread
        event = await self._stock(key, stimulus_id=stimulus_id)
        if isinstance(event, ExecuteSuccessEvent):
            self.upkeep.worked(event.stop - event.start)
            try:
                if (event.nbytes or 0) >= self.least:
                    event = await self._publish_ahead(event)
                elif self.keeper is not None:
                    self.keeper.made(event.key, event.value)
            except Exception as error:
                self._caught("publish_ahead", error)
        self._grant()
        return event

    async def _publish_ahead(self, event: ExecuteSuccessEvent) -> ExecuteSuccessEvent:
        """Put a result into shared memory if a peer will ask for it.

        The task is still running for all that Dask knows: its thread is free for the copy.
        """
        kind, value = self._kind(event.key), event.value
        self.sharing.made(kind)
        handed_on = value in self.store.foreign  # an input
        wanted = is_plain_array(value) and (
            self._will_be_read(event.key, kind)
            or (self.keeper is not None and self._is_made_here(value) and self.upkeep.affords())
        )
        if handed_on or not wanted:
            if self.keeper is not None:
                self.keeper.made(event.key, value)
            return event
        known = self._published.get(value)
        if known is not None and not known.mapping.modified():
            self.tell(event.key, known.handle, known.stamp)
            return event
        chunk, view, mapping = await self._put(event.key, value)
        if chunk is None:
            return event
        self.tell(event.key, chunk.handle, chunk.stamp)
        self.ahead += 1
        self.upkeep.kept()
        self._published.set(view, Published(chunk.handle, mapping, chunk.stamp, ahead=True))
        return replace(event, value=view)

    # -- whatever is still there -----------------------------------------------------------

    async def keep_array(self, key: Key, value: NDArray[Any]) -> None:
        """Let a copy in shared memory take the place of an array that is stored."""
        chunk, view, mapping = await self._put(key, value)
        if chunk is None or self.store.in_memory(key) is not value:
            return
        self.ahead += 1
        self._published.set(view, Published(chunk.handle, mapping, chunk.stamp, ahead=True))
        self.store.exchange(key, value, view)
        self.tell(key, chunk.handle, chunk.stamp)

    async def is_told(self, key: Key, value: object) -> bool:
        """Tell where a result is if it is published already."""
        while key in self._publishing:
            await asyncio.wait([self._publishing[key]])
        known = self._published.get(value)
        if known is None or known.mapping.modified():
            return False
        self.tell(key, known.handle, known.stamp)
        return True

    def tell(self, key: Key, handle: Handle, stamp: int) -> None:
        """Tell the scheduler where a result outlives this process."""
        if self._announce is not None and stamp:
            self._announce(key, handle, stamp)

    def _will_be_read(self, key: Key, kind: str) -> bool:
        """Whether a neighbour will ask, by what the plan tells or by what is usual."""
        ts = self.worker.state.tasks.get(key)
        return (ts is not None and is_shared(ts)) or self.sharing.is_shared(kind)

    def has_room(self) -> bool:
        """Whether memory may wait for its next array, here where that may never be published.

        Where memory is tight more would be spilled for it than a copy costs.
        """
        assert self._arena is not None
        return not self.store.spill_tier and self.store.held < _ROOMY * self._arena.cap

    def _is_made_here(self, value: object) -> bool:
        """Whether an array lies in shared memory already, and can be published there."""
        assert self._arena is not None
        return is_plain_array(value) and self._arena.is_made_here(value.ctypes.data, value.nbytes)

    def _kind(self, key: Key) -> str:
        ts = self.worker.state.tasks.get(key)
        return ts.prefix if ts is not None else ""

    async def _put(self, key: Key, value: object) -> tuple[Any, object, Any]:
        copied = 0 if self._is_made_here(value) else sizeof(value)
        found: tuple[Any, object, Any] = await self.copy(key, copied, _put, self._arena, value)
        return found

    async def copy(self, key: Key, copied: int, put: Callable[..., Any], *args: Any) -> Any:
        """Publish a result, in a thread where so many bytes take long to copy."""
        if copied <= COPIED_AT_ONCE:
            # That takes less of the event loop's time than what stock Dask does there with a chunk
            # that it sends. To hand it to a thread, and to wait for the interpreter's lock, takes
            # longer than the copy.
            return put(*args)
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._copier, put, *args)
        self._publishing[key] = future
        try:
            return await future
        finally:
            del self._publishing[key]


def _put(arena: Arena, value: object) -> tuple[Any, object, Any]:
    """Publish an object; return the chunk, what takes the object's place, and what it shows.

    An array that was made here stays: what is written to it is seen by nobody else from now on,
    also where a task keeps it, or a view of it.
    """
    plain = is_plain_array(value)
    try:
        header, frames = to_frames(value)
    except Exception:  # it cannot be serialized: Dask says so where it has to be
        return None, None, None
    chunk = arena.put(header, frames, plain=plain)
    if chunk is None or not plain:
        return chunk, None, None
    if chunk.address:
        return chunk, value, chunk
    mapping = chunk.map()
    return chunk, from_frames(header, mapping.frames(chunk.handle.lengths)), mapping
