"""Takes over the results of a peer that died, by mapping its shared memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from dask.typing import Key
from distributed import Worker
from distributed.metrics import time
from distributed.worker_state_machine import UpdateDataEvent

from dask_marsched.host.worker.data import WorkerStore
from dask_marsched.host.worker.publishing import Published
from dask_marsched.store.attachment import Attachments
from dask_marsched.store.frames import from_frames
from dask_marsched.store.scattered import frames_of
from dask_marsched.store.segment import Handle

#: Events of the state machine that are created, with the fields used.
EVENTS: dict[Any, set[str]] = {UpdateDataEvent: {"data", "stimulus_id"}}

#: Seconds to wait for aborted fetches, which normally end at once.
_ABORTED = 2.0
#: Seconds between two attempts to abort them.
_AGAIN = 0.1
#: States in which a worker's task cannot receive its result.
_BUSY = frozenset({"flight", "executing", "long-running", "cancelled", "resumed"})


@dataclass
class TransferCounters:
    """Counts of chunks, and of their bytes, since the transfer was installed.

    `by_handle` were mapped, `by_comm` fetched as in stock Dask, `adopted` taken over from workers
    that died. `fallbacks` counts large chunks of peers on this host that were fetched because
    mapping ``failed`` or they were ``not published``.
    """

    by_handle: int = 0
    bytes_by_handle: int = 0
    by_comm: int = 0
    bytes_by_comm: int = 0
    adopted: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)


class ResultAdopter:
    """Adopts results of dead peers into a worker's data; what fails is computed again.

    Parameters
    ----------
    worker : Worker
    store : WorkerStore
        The worker's data.
    attachments : Attachments
        Its mappings of peers' memory.
    counters : TransferCounters
        Counts what was adopted.
    caught : callable
        Called with (where, exception) for each of our own errors.
    """

    def __init__(
        self,
        worker: Worker,
        store: WorkerStore,
        attachments: Attachments,
        counters: TransferCounters,
        caught: Callable[[str, Exception], None],
    ) -> None:
        self._worker: Any = worker
        self._store = store
        self._attachments = attachments
        self._counters = counters
        self._caught = caught
        self._gathering: dict[str, asyncio.Task[Any]] = {}

    @contextlib.contextmanager
    def gathering_from(self, peer: str) -> Iterator[None]:
        """Know of what is fetched from a peer meanwhile, in a task of its own.

        Dask fetches from each peer once at a time.
        """
        task = asyncio.current_task()
        assert task is not None
        self._gathering[peer] = task
        try:
            yield
        finally:
            if self._gathering.get(peer) is task:
                del self._gathering[peer]

    async def adopt(self, chunks: Collection[tuple[Key, Any, int]], gone: str) -> dict[str, Any]:
        """Take over chunks of a peer that is gone; answer which the worker has now."""
        data: dict[Key, object] = {}
        for key, message, stamp in chunks:
            try:
                handle = Handle.from_message(message)
                if handle.plain:
                    mapping = self._attachments.map_stamped(handle, stamp)
                    value = await make_object(handle, mapping.frames(handle.lengths))
                    self._store.foreign.set(value, Published(handle, mapping))
                else:
                    value = await make_object(handle, frames_of(self._attachments, handle, stamp))
            except Exception as error:
                if not isinstance(error, OSError):
                    self._caught("adopt", error)
                continue
            data[key] = value
        await self._expect_nothing_of(gone, data)
        tasks = self._worker.state.tasks
        data = {k: x for k, x in data.items() if k not in tasks or tasks[k].state not in _BUSY}
        if data:
            self._worker.handle_stimulus(
                UpdateDataEvent(data=data, stimulus_id=f"marsched-adopt-{time()}")
            )
        adopted = [key for key in data if key in self._worker.data]
        self._counters.adopted += len(adopted)
        return {"status": "OK", "adopted": adopted}

    async def _expect_nothing_of(self, gone: str, keys: Collection[Key]) -> None:
        """End what is being fetched from a peer that is gone, as Dask does when it removes it.

        Dask's state machine takes a task for one that is on its way until the fetch has ended,
        also when it has got the data from elsewhere. Where that task is forgotten before, the end
        of the fetch is an error, for which the worker closes, and its nanny with it.
        """
        until = monotonic() + _ABORTED
        while (coming := self._coming(keys)) and monotonic() < until:
            # More than once: the scheduler still tells everybody that the results are there.
            with contextlib.suppress(RuntimeError):  # what ends at this moment cannot be ended
                self._worker.rpc.remove(gone)
            gathering = [self._gathering[peer] for peer in coming if peer in self._gathering]
            if gathering:
                # Dask's own callback of a task comes before ours: it has heard of the end.
                await asyncio.wait(gathering, timeout=_AGAIN)
            else:
                await asyncio.sleep(0)  # they are about to begin

    def _coming(self, keys: Collection[Key]) -> set[str]:
        """Return from whom some of the keys are being fetched."""
        state = self._worker.state
        tasks = filter(None, map(state.tasks.get, keys))
        return {ts.coming_from for ts in tasks if ts in state.in_flight_tasks}


async def make_object(handle: Handle, frames: list[memoryview]) -> object:
    """Return the object that frames hold."""
    if handle.plain:
        return from_frames(handle.header, frames)
    return await asyncio.to_thread(from_frames, handle.header, frames)
