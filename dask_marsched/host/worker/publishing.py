"""Publishes a worker's results in shared memory: on a peer's request, or as they are computed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from dask.sizeof import sizeof
from dask.typing import Key
from distributed import Worker
from distributed.core import Status
from distributed.worker_state_machine import ExecuteSuccessEvent
from numpy.typing import NDArray

from dask_marsched.host.replacements import Replacements
from dask_marsched.host.scheduler.task_hints import is_shared
from dask_marsched.host.worker.data import WorkerStore
from dask_marsched.policies.sharing import RetentionBudget, ShareModel
from dask_marsched.store.arena import Arena, SharedChunk
from dask_marsched.store.array_memory import filled, make_arrays_here, sizes_wanted
from dask_marsched.store.frames import from_frames, is_plain_array, to_frames
from dask_marsched.store.identities import IdentityMap
from dask_marsched.store.mapping import COPIED_AT_ONCE, Mapping
from dask_marsched.store.segment import Handle, is_published

#: Arrays are allocated in shared memory while results take at most this share of the arena's cap.
_ROOMY = 0.5
#: Seconds between the release of a result and the return of its memory, which batches releases.
_RELEASE_DELAY = 0.002


class Retainer(Protocol):
    """Keeps results in shared memory in case this worker dies (see `ResultRetainer`)."""

    def made(self, key: Key, value: object) -> None:
        """Note that a task has returned a result."""

    def let_go(self, key: Key) -> None:
        """Note that a result has left the worker's memory."""

    def announce_again(self) -> None:
        """Announce all copies."""

    def close(self) -> None:
        """Release all copies."""


class Published(NamedTuple):
    """The place from which peers can map an object."""

    handle: Handle
    #: our own mapping, or the chunk if allocated in shared memory; detects later writes
    mapping: Mapping | SharedChunk
    #: identifies the chunk after its owner has died; 0 if unknown
    stamp: int = 0
    #: true if no peer had asked for it
    ahead: bool = False
    #: whether a peer holds it as well
    is_peers: bool = True


class Publisher:
    """Publishes results of at least ``least`` bytes in a worker's arena."""

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
        self.budget = RetentionBudget()
        # Results published without a request, and those of them that a peer then asked for.
        self.ahead = self.ahead_read = 0
        self._arena: Arena | None = None
        self._spare = self._filled = 0
        self._announce: Callable[[Key, Handle, int], None] | None = None
        #: keeps results in case this worker dies; None without
        self.retainer: Retainer | None = None
        self._release_pending = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._caught = caught
        self._undo = Replacements()
        self._published: IdentityMap[Published] = IdentityMap()
        self._asked: IdentityMap[bool] = IdentityMap()
        self._publishing: dict[Key, asyncio.Future[Any]] = {}
        # Parallel copies are no faster, and tasks need the processors.
        self._copier = ThreadPoolExecutor(1, thread_name_prefix="marsched-publish")

    def install(
        self,
        arena: Arena,
        announce: Callable[[Key, Handle, int], None] | None = None,
        retainer: Retainer | None = None,
    ) -> None:
        """Intercept `Worker.execute`, so that each result is seen before it is stored.

        Published results are announced; others are retained as well by a `ResultRetainer`.
        """
        self._arena, self._announce, self.retainer = arena, announce, retainer
        self._spare = arena.spare
        if retainer is not None:
            self.store.fast.gone = self._left_memory
        self._stock = self._undo.attribute(self.worker, "execute", self._execute)

    def uninstall(self) -> None:
        """Restore the worker. Chunks that its data are views of stay published."""
        self.store.fast.gone = None
        if self.retainer is not None:
            self.retainer.close()
            self.retainer = None
        self._undo.close()

    def give_back(self) -> None:
        """Return shared memory that has been unused for a while to the system."""
        if self._arena is not None and self._arena.filled > self._arena.live:
            self._submit("trim", self._arena.trim_unneeded)

    def _submit(self, where: str, call: Callable[..., object], *args: Any) -> None:
        def guarded() -> None:
            try:
                call(*args)
            except Exception as error:
                self._caught(where, error)

        with contextlib.suppress(RuntimeError):  # closed in the meantime
            self._copier.submit(guarded)

    def _left_memory(self, key: Key) -> None:
        """Note that a result has left memory. Called in any thread."""
        if self.retainer is not None:
            self.retainer.let_go(key)
        if self._loop is not None and not self._release_pending:
            # malloc returns memory at once; the end of the next task may be late.
            self._release_pending = True
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(
                    self._loop.call_later, _RELEASE_DELAY, self._return_memory
                )

    def _return_memory(self) -> None:
        self._release_pending = False
        self._reserve()

    def _reserve(self) -> None:
        """Reserve shared memory for the next arrays, and return what exceeds their need."""
        arena, sizes = self._arena, sizes_wanted()
        before, self._filled = self._filled, filled()
        self.budget.filled(self._filled - before)
        if arena is not None and (sizes or arena.has_excess):
            self._submit("grant", self._reserve_in, arena, sizes)

    @staticmethod
    def _reserve_in(arena: Arena, sizes: list[int]) -> None:
        # Addresses are free, and most tasks allocate more than one array.
        arena.grant(4 * sizes)
        arena.recycle()
        arena.trim_excess()

    def close(self) -> None:
        """Publish nothing more. Idempotent."""
        self._copier.shutdown(wait=False)

    async def publish(self, key: Key) -> tuple[Handle, object] | None:
        """Return a handle of a key, and an object that keeps it valid; None if it has none."""
        while key in self._publishing:  # for another peer
            await asyncio.wait([self._publishing[key]])
        # Spilled results are not read back: memory was scarce a moment ago.
        value = self.store.in_memory(key)
        known = self._published.get(value)
        if known is None and (foreign := self.store.foreign.get(value)) is not None:
            # Its owner may have released it, or have left together with its nanny.
            known = foreign if is_published(foreign.handle) else None
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
            self.store.fast.exchange(key, value, view)
            # An earlier chunk ends with the value that this view replaces.
            self.announce(key, chunk.handle, chunk.stamp)
        # Freeing the private memory takes a fifth of the time of the copy. The caller keeps the
        # value, so that the peer need not wait for that.
        return chunk.handle, (chunk, value)

    async def _execute(self, key: Key, *, stimulus_id: str) -> Any:
        self._loop = asyncio.get_running_loop()
        is_cheap = self.budget.affords() if self.retainer else self.has_room()
        if is_cheap or self._will_be_read(key, self._kind(key)):
            make_arrays_here(self._spare)  # in this task's context, which its thread copies
        event = await self._stock(key, stimulus_id=stimulus_id)
        if isinstance(event, ExecuteSuccessEvent):
            self.budget.worked(event.stop - event.start)
            try:
                if (event.nbytes or 0) >= self.least:
                    event = await self._publish_ahead(event)
                elif self.retainer is not None:
                    self.retainer.made(event.key, event.value)
            except Exception as error:
                self._caught("publish_ahead", error)
        self._reserve()
        return event

    def ran(self, event: ExecuteSuccessEvent) -> None:
        """Retain a small result of a task that was not executed by `Worker.execute`."""
        self.budget.worked(event.stop - event.start)
        if self.retainer is not None:
            try:
                self.retainer.made(event.key, event.value)
            except Exception as error:
                self._caught("retain", error)

    async def _publish_ahead(self, event: ExecuteSuccessEvent) -> ExecuteSuccessEvent:
        """Put a result into shared memory if a peer will ask for it."""
        # Dask still counts the task as running, so its processor is free for the copy.
        kind, value = self._kind(event.key), event.value
        self.sharing.made(kind)
        is_input = value in self.store.foreign  # the task returned one of its inputs
        wanted = is_plain_array(value) and (
            self._will_be_read(event.key, kind)
            or (self.retainer is not None and self._is_in_arena(value) and self.budget.affords())
        )
        if is_input or not wanted:
            if self.retainer is not None:
                self.retainer.made(event.key, value)
            return event
        if self._announce_if_published(event.key, value):
            return event
        chunk, view, mapping = await self._put(event.key, value)
        if chunk is None:
            return event
        self.announce(event.key, chunk.handle, chunk.stamp)
        self.ahead += 1
        self.budget.kept()
        self._published.set(view, Published(chunk.handle, mapping, chunk.stamp, ahead=True))
        return replace(event, value=view)

    async def keep_array(self, key: Key, value: NDArray[Any]) -> None:
        """Replace a stored array by a copy in shared memory."""
        chunk, view, mapping = await self._put(key, value)
        if chunk is None or self.store.in_memory(key) is not value:
            return
        self.ahead += 1
        self._published.set(view, Published(chunk.handle, mapping, chunk.stamp, ahead=True))
        self.store.fast.exchange(key, value, view)
        self.announce(key, chunk.handle, chunk.stamp)

    async def announce_published(self, key: Key, value: object) -> bool:
        """Announce a result if it is published already; return whether it is."""
        while key in self._publishing:
            await asyncio.wait([self._publishing[key]])
        return self._announce_if_published(key, value)

    def _announce_if_published(self, key: Key, value: object) -> bool:
        known = self._published.get(value)
        if known is None or known.mapping.modified():
            return False
        self.announce(key, known.handle, known.stamp)
        return True

    def announce_again(self) -> None:
        """Announce all results in memory that are published or retained."""
        for key in list(self.worker.state.tasks):
            self._announce_if_published(key, self.store.in_memory(key))
        if self.retainer is not None:
            self.retainer.announce_again()

    def announce(self, key: Key, handle: Handle, stamp: int) -> None:
        """Tell the scheduler where to find a result if this process dies."""
        if self._announce is not None and stamp:
            self._announce(key, handle, stamp)

    def _will_be_read(self, key: Key, kind: str) -> bool:
        """Predict whether a peer will ask for a result, from its task's hint or from its kind."""
        ts = self.worker.state.tasks.get(key)
        return (ts is not None and is_shared(ts)) or self.sharing.is_shared(kind)

    def has_room(self) -> bool:
        """Whether shared memory may be reserved for arrays that may never be published."""
        # When memory is short, the spilling it causes costs more than a copy.
        assert self._arena is not None
        return not self.store.slow and self.store.held < _ROOMY * self._arena.cap

    def _is_in_arena(self, value: object) -> bool:
        assert self._arena is not None
        return is_plain_array(value) and self._arena.is_allocated_here(
            value.ctypes.data, value.nbytes
        )

    def _kind(self, key: Key) -> str:
        ts = self.worker.state.tasks.get(key)
        return ts.prefix if ts is not None else ""

    async def _put(self, key: Key, value: object) -> tuple[Any, object, Any]:
        copied = 0 if self._is_in_arena(value) else sizeof(value)
        found: tuple[Any, object, Any] = await self.copy(key, copied, _put, self._arena, value)
        return found

    async def copy(self, key: Key, copied: int, put: Callable[..., Any], *args: Any) -> Any:
        """Publish a result of which `copied` bytes are copied; in a thread if they are many."""
        if copied <= COPIED_AT_ONCE:
            # A thread would take longer to get the interpreter lock than this takes to copy, and
            # stock Dask spends more time on the event loop for a chunk that it sends.
            return put(*args)
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._copier, put, *args)
        self._publishing[key] = future
        try:
            return await future
        finally:
            if self._publishing.get(key) is future:  # a key that was computed again has another
                del self._publishing[key]


def _put(arena: Arena, value: object) -> tuple[Any, object, Any]:
    """Publish an object; return its chunk, the object to store instead, and the mapping of that."""
    # An array allocated here is stored as it is: later writes to it are private to this process.
    plain = is_plain_array(value)
    try:
        header, frames = to_frames(value)
    except Exception:  # not serializable; Dask raises the error when it has to be sent
        return None, None, None
    chunk = arena.put(header, frames, plain=plain)
    if chunk is None or not plain:
        return chunk, None, None
    if chunk.address:
        return chunk, value, chunk
    mapping = chunk.map()
    return chunk, from_frames(header, mapping.frames(chunk.handle.lengths)), mapping
