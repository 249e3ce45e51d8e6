"""Takes over the results of a peer that died, by mapping its shared memory."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator
from time import monotonic
from typing import Any

from dask.typing import Key
from distributed import Worker
from distributed.metrics import time
from distributed.worker_state_machine import ReleaseWorkerDataMsg

from dask_marsched.host.worker.data import WorkerStore
from dask_marsched.host.worker.publishing import Published
from dask_marsched.store.attachment import Attachments
from dask_marsched.store.frames import from_frames
from dask_marsched.store.scattered import frames_of
from dask_marsched.store.segment import Handle

#: Seconds for which mapped chunks are kept for a scheduler that may have died.
_OFFERED = 30.0
#: Seconds to wait for aborted fetches, which normally end at once.
_ABORTED = 2.0
#: Seconds between two attempts to abort them.
_AGAIN = 0.1
#: States in which a worker's task cannot receive its result.
_BUSY = frozenset({"flight", "executing", "long-running", "cancelled", "resumed"})


class ResultAdopter:
    """Adopts results of dead peers into a worker's data; what fails is computed again."""

    def __init__(
        self,
        worker: Worker,
        store: WorkerStore,
        attachments: Attachments,
        counters: dict[str, int],
        caught: Callable[[str, Exception], None],
    ) -> None:
        self._worker: Any = worker
        self._store = store
        self._attachments = attachments
        self._counters = counters
        self._caught = caught
        self._gathering: dict[str, asyncio.Task[Any]] = {}
        #: Mapped results by the number of the call, until the scheduler tells which it wants.
        self._offers: dict[int, dict[Key, object]] = {}
        self._numbers = itertools.count()

    @contextlib.contextmanager
    def gathering_from(self, peer: str) -> Iterator[None]:
        """Register the current asyncio task as the fetch from a peer; Dask runs one per peer."""
        task = asyncio.current_task()
        assert task is not None
        self._gathering[peer] = task
        try:
            yield
        finally:
            if self._gathering.get(peer) is task:
                del self._gathering[peer]

    async def adopt(self, chunks: Collection[tuple[Key, Any, int]], gone: str) -> dict[str, Any]:
        """Map chunks of a dead peer; return the keys of those that were there, as an offer."""
        data: dict[Key, object] = {}
        for key, message, stamp in chunks:
            try:
                handle = Handle.from_message(message)
                if handle.plain:
                    mapping = self._attachments.map_stamped(handle, stamp)
                    value = await make_object(handle, mapping.frames(handle.lengths))
                    self._store.foreign.set(value, Published(handle, mapping, is_peers=False))
                else:
                    value = await make_object(handle, frames_of(self._attachments, handle, stamp))
            except Exception as error:
                if not isinstance(error, OSError):
                    self._caught("adopt", error)
                continue
            data[key] = value
        number = next(self._numbers)
        self._offers[number] = data
        asyncio.get_running_loop().call_later(_OFFERED, self._offers.pop, number, None)
        return {"status": "OK", "adopted": list(data), "offer": number}

    async def accept(self, keys: Collection[Key], offer: int, run_id: int, gone: str) -> None:
        """Store these of the chunks of a dead peer, as if made by a run.

        The scheduler says so in the order of its other messages: a key may have been released
        meanwhile, and used again for another task.
        """
        worker, offered = self._worker, self._offers.pop(offer, {})
        tasks, stimulus_id = worker.state.tasks, f"marsched-adopt-{time()}"
        try:
            await self._abort_fetches(gone, keys)
            wanted = [k for k in keys if k not in tasks or tasks[k].state not in _BUSY]
            if data := {k: offered[k] for k in wanted if k in offered}:
                # Also drops deferred answers about these keys (`DeferredMessages.stored`).
                worker.update_data(data=data, stimulus_id=stimulus_id)
        except Exception as error:  # it would end the connection to the scheduler
            self._caught("adopt", error)
        for key in keys:
            if key in worker.data:
                self._counters["adopted"] += 1
                tasks[key].run_id = run_id  # tells another scheduler of which task it is
            else:
                message = ReleaseWorkerDataMsg(key=key, stimulus_id=stimulus_id)
                worker.batched_send(message.to_dict())

    async def _abort_fetches(self, gone: str, keys: Collection[Key]) -> None:
        """Abort fetches of these keys from a dead peer, as Dask does when it removes the peer."""
        # Dask keeps a task in flight until its fetch ends, even if the data arrived otherwise. If
        # the task is forgotten before, the end of the fetch is an error that closes worker and
        # nanny.
        until = monotonic() + _ABORTED
        while (peers := self._fetched_from(keys)) and monotonic() < until:
            # Repeated, as the scheduler may still direct new fetches to the dead peer.
            with contextlib.suppress(RuntimeError):  # a connection that closes just now
                self._worker.rpc.remove(gone)
            gathering = [self._gathering[peer] for peer in peers if peer in self._gathering]
            if gathering:
                # Dask's callback on a task precedes ours, so the state machine knows the end.
                await asyncio.wait(gathering, timeout=_AGAIN)
            else:
                await asyncio.sleep(0)  # the fetches are about to start

    def _fetched_from(self, keys: Collection[Key]) -> set[str]:
        state = self._worker.state
        tasks = filter(None, map(state.tasks.get, keys))
        return {ts.coming_from for ts in tasks if ts in state.in_flight_tasks}


async def make_object(handle: Handle, frames: list[memoryview]) -> object:
    """Deserialize an object; in a thread if that may take long."""
    if handle.plain:
        return from_frames(handle.header, frames)
    return await asyncio.to_thread(from_frames, handle.header, frames)
