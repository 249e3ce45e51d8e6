"""Keeps a worker's data in private memory, shared memory and on disk, behind one `SpillBuffer`."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import (
    Callable,
    Container,
    ItemsView,
    Iterable,
    Iterator,
    MutableMapping,
    ValuesView,
)
from pathlib import Path
from typing import Any, Literal

import numpy as np
from dask.typing import Key
from distributed import Worker
from distributed.core import Status
from distributed.metrics import context_meter, monotonic
from distributed.sizeof import safe_sizeof
from distributed.spill import (
    HandledError,
    MaxSpillExceeded,
    PickleError,
    SpillBuffer,
    SpilledSize,
)
from zict.buffer import BufferItemsView, BufferValuesView
from zict.common import NoDefault, nodefault

from dask_marsched.host.contract import NotApplicable, demand, misfits_of_attributes
from dask_marsched.policies.eviction import Resident
from dask_marsched.store.eviction import NextUse, SpillingBuffer
from dask_marsched.store.frames import is_strided
from dask_marsched.store.identities import IdentityMap
from dask_marsched.store.spill_tier import SpillTier

logger = logging.getLogger("dask_marsched")

#: Seconds until a result that could not be pickled is tried again, doubled each time: memory may
#: have been short, or the result may have changed.
_PICKLED_AGAIN = 5.0
#: States of tasks that still read their inputs.
_WAITING = frozenset({"waiting", "ready", "constrained", "executing", "long-running"})


def misfits(worker: Any) -> list[str]:
    """Return how distributed differs from what the store expects; empty if it does not."""
    names = ("_capture_metrics", "_handle_errors", "memory", "disk")
    return misfits_of_attributes("SpillBuffer", SpillBuffer, names) + [
        f"worker.{owner}.data is no mapping"
        for owner in ("memory_manager", "state")
        if not isinstance(getattr(getattr(worker, owner, None), "data", None), MutableMapping)
    ]


class _Items(BufferItemsView[Key, object]):
    _mapping: WorkerStore

    def __iter__(self) -> Iterator[tuple[Key, object]]:
        for key in self._mapping:
            try:
                value = self._mapping.peek(key)
            except KeyError:  # deleted in the meantime
                continue
            yield key, value


class _Values(BufferValuesView[object]):
    _mapping: WorkerStore

    def __iter__(self) -> Iterator[object]:
        return (value for _, value in _Items(self._mapping))


class WorkerStore(SpillBuffer, SpillingBuffer):
    """The data of a worker, spilled above ``target`` bytes of private memory; may raise OSError."""

    def __init__(
        self,
        directory: str,
        target: int,
        max_spill: int | Literal[False] = False,
        *,
        compression: str | None = None,
        next_use: NextUse | None = None,
    ) -> None:
        #: arrays over shared memory of others; those of a living peer weigh nothing here
        self.foreign: IdentityMap[Any] = IdentityMap()
        #: called before each eviction, to return unused shared memory
        self.give_back: Callable[[], object] | None = None
        tier = SpillTier(directory, max_spill, compression)
        # Skips SpillBuffer's own initializer, which makes a directory of files.
        super(SpillBuffer, self).__init__(tier, target, self._weigh)
        self.fast.next_use = next_use
        self.logged_pickle_errors = set()
        #: Until when a key that could not be pickled is not tried again, and for how long that is.
        self._not_pickled: dict[Key, tuple[float, float]] = {}
        self.cumulative_metrics = defaultdict(float)

    @property
    def spilled_total(self) -> SpilledSize:
        """Bytes of spilled data: their size in memory, and on disk."""
        return self.slow.total_weight

    def _weigh(self, key: Key, value: object) -> int:
        known = self.foreign.get(value)
        # Pages that were written to since are a copy that belongs to this process.
        is_peers = known is not None and known.is_peers and not known.mapping.modified()
        return 0 if is_peers else safe_sizeof(value)

    def weigh_orphans(self, orphans: Container[tuple[bytes, int]]) -> None:
        """Give a weight to arrays over memory whose owner is gone, or has released it.

        ``orphans`` are segments and offsets there.
        """
        with self.lock:
            for key in [key for key, weight in self.fast.weights.items() if not weight]:
                value = self.fast.d[key]
                known = self.foreign.get(value)
                if known is None:
                    continue
                place = known.handle.segment.identity, known.handle.offset
                if not known.is_peers or place in orphans:
                    self.foreign.set(value, known._replace(is_peers=False))
                    self.fast.exchange(key, value, value)

    def __getitem__(self, key: Key) -> object:
        with self._capture_metrics():
            with self.lock:
                weight = self.fast.weights.get(key)
                if weight is not None:
                    context_meter.digest_metric("memory-read", 1, "count")
                    context_meter.digest_metric("memory-read", weight, "bytes")
            # Not SpillBuffer's method: another thread may evict the key in the middle of that.
            return SpillingBuffer.__getitem__(self, key)

    def __iter__(self) -> Iterator[Key]:
        # Under the lock, or a key that moves between the tiers could be missed.
        with self.lock:
            return iter([*self.fast, *self.slow])

    def items(self) -> ItemsView[Key, object]:
        """Return the keys and values without promoting any; deleted keys are skipped."""
        return _Items(self)

    def values(self) -> ValuesView[object]:
        """Return the values without promoting any; deleted keys are skipped."""
        return _Values(self)

    def peek(self, key: Key) -> object:
        """Return a value without moving it or touching the eviction order; may raise KeyError."""
        with self.lock:
            if key in self.fast:
                return self.fast.d[key]
            entry = self.slow.entries[key]
        return self.slow.read(entry)

    def evict(self, key: Key | NoDefault = nodefault) -> int:
        """Move a key, or the one needed last, to disk; return its bytes, or -1 on failure.

        0 if the given key is not in memory, or was freed meanwhile. Any thread may call it. Other
        failures are logged, and leave the value in memory.
        """
        if self.give_back is not None:
            self.give_back()
        try:
            with self._capture_metrics(), self._handle_errors(None):
                return int(self.fast.evict(key)[2])
        except HandledError:
            with self.lock:
                if key in self.logged_pickle_errors:
                    seconds = 2 * self._not_pickled.get(key, (0.0, _PICKLED_AGAIN / 2))[1]
                    self._not_pickled[key] = (monotonic() + seconds, seconds)
            return -1
        except KeyError:
            # Other threads write all that is left: after a 0 distributed would ask again at once.
            return -1 if key is nodefault else 0
        except AssertionError as error:
            # distributed asserts that what could not be written is still in memory.
            if not isinstance(error.__context__, (MaxSpillExceeded, PickleError)):
                raise
            return 0

    def in_memory(self, key: Key) -> object | None:
        """Return the value in memory under a key, or None, without touching the eviction order."""
        return self.fast.d.get(key)

    @property
    def held(self) -> int:
        """Bytes of the results in memory; a buffer shared by several counts once, in full."""
        return int(self.fast.total_weight) + self.fast.buffers.hidden

    def evictable(self) -> list[Resident]:
        """Return the results in memory whose eviction frees memory, in groups."""
        with self.lock:
            weights, buffers = dict(self.fast.weights), self.fast.buffers
            found = list(buffers.together())
            found += [Resident((k,), int(w)) for k, w in weights.items() if w and k not in buffers]
            for key in self._not_pickled.keys() - self.logged_pickle_errors:
                del self._not_pickled[key]  # it is gone, or another one
            now = monotonic()
            failed = {key for key, (until, _) in self._not_pickled.items() if now < until}
        return [some for some in found if failed.isdisjoint(some.keys)]

    def copy_views(self, keys: Iterable[Key]) -> None:
        """Copy small views, so that the buffers under them can be freed. Thread-safe."""
        # The copies are contiguous, as they would be after a round trip to disk.
        for key in keys:
            view = self.in_memory(key)
            if type(view) is np.ndarray:
                own = view.copy(order="K")
                own.flags.writeable = view.flags.writeable
                self.fast.exchange(key, view, own)

    def is_spilled(self, key: Key) -> bool:
        """Whether a result is on disk only."""
        return key not in self.fast and key in self.slow

    def takes_more_to_send(self, key: Key) -> bool:
        """Whether sending a result temporarily takes its size once more."""
        return self.is_spilled(key) or is_strided(self.in_memory(key))

    def report(self) -> dict[str, int]:
        """Return the bytes in each tier, and counts, as plain values for JSON."""
        spilled = self.spilled_total
        return {
            "memory": self.held,
            "spilled": int(spilled.memory),
            "disk": int(spilled.disk),
            **self.slow.counters,
        }


def order_of_use(worker: Worker) -> NextUse:
    """Return a function that gives the first priority of the waiting readers of a key."""
    tasks: Any = worker.state.tasks

    def next_use(key: Key) -> Any:
        ts = tasks.get(key)
        if ts is None:
            return None
        # `list` copies in one step: the event loop may add to it in the meantime.
        waiting = [d.priority for d in list(ts.dependents) if d.state in _WAITING]
        return min(waiting, default=None)

    return next_use


def install(worker: Worker, *, compression: str | None = None) -> WorkerStore:
    """Move a worker's data into a `WorkerStore`. On an error they stay where they were.

    A store that `uninstall` could not empty is used again, with its compression. While they move,
    spilled data take twice their space on disk.

    Raises NotApplicable if the worker has no `SpillBuffer` (no memory limit, or its own mapping),
    RuntimeError if distributed is not as expected or a result on disk cannot be moved, and OSError
    if there is no spill file.
    """
    demand(misfits(worker), "the worker keeps its data as they are")
    stock: Any = worker.data
    if type(stock) is WorkerStore:
        return stock  # `uninstall` could not move them
    if type(stock) is not SpillBuffer:
        why = "" if worker.memory_manager.memory_limit else ", as it has no memory limit"
        raise NotApplicable(
            f"the worker keeps its data in a {type(stock).__name__}, not in a SpillBuffer{why}"
        )
    store = WorkerStore(
        str(Path(worker.local_directory) / "storage"),
        int(stock.fast.n),
        worker.memory_manager.max_spill,
        compression=compression,
        next_use=order_of_use(worker),
    )
    _exchange_data(worker, stock, store)
    return store


def uninstall(worker: Worker, store: WorkerStore) -> None:
    """Move a worker's data back to a stock `SpillBuffer`, unless the worker is closing.

    They stay in the store if one of them cannot be moved.
    """
    if worker.data is not store or worker.status == Status.closing:
        return
    stock = SpillBuffer(
        str(Path(worker.local_directory) / "storage"),
        int(store.fast.n),
        worker.memory_manager.max_spill,
    )
    try:
        _exchange_data(worker, store, stock)
    except RuntimeError as error:
        logger.warning("%s", error)


def _exchange_data(worker: Worker, old: SpillBuffer, new: SpillBuffer) -> None:
    """Copy all data from one mapping to another, and exchange these; RuntimeError if one fails."""
    for key, value in list(old.fast.items()):
        new.set_noevict(key, value)
    # From disk to disk, one at a time: all of them together may not fit in memory.
    for key in list(old.slow):
        try:
            new.slow[key] = old.slow[key]
        except Exception as error:  # of any kind: loading may run the user's code
            _clear(new)
            raise RuntimeError(
                f"the worker keeps its data in a {type(old).__name__}: "
                f"the spilled {key!r} cannot be moved: {error!r}"
            ) from error
    new.logged_pickle_errors.update(old.logged_pickle_errors)
    new.cumulative_metrics.update(old.cumulative_metrics)
    worker.memory_manager.data = new
    worker.state.data = new
    _clear(old)


def _clear(data: SpillBuffer) -> None:
    for key in list(data):
        del data[key]
    data.close()
