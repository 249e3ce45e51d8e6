"""The worker's data: in private memory, in shared memory, on disk, behind one mapping.

It is a `distributed.spill.SpillBuffer` with another disk and another order of eviction, so that
whatever reads a worker's data finds what it expects: the memory monitor, the heartbeat, the
metrics. Chunks in shared memory are among those in memory: an array over other bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, ItemsView, Iterable, Iterator, MutableMapping, ValuesView
from pathlib import Path
from typing import Any, Literal

import distributed
import numpy as np
from dask.typing import Key
from distributed import Worker
from distributed.core import Status
from distributed.metrics import context_meter
from distributed.sizeof import safe_sizeof
from distributed.spill import HandledError, SpillBuffer, SpilledSize
from zict.buffer import BufferItemsView, BufferValuesView
from zict.common import NoDefault, nodefault

from dask_marsched.store.buffers import EvictionGroup
from dask_marsched.store.eviction import NextUse, SpillingBuffer
from dask_marsched.store.frames import is_strided
from dask_marsched.store.identities import IdentityMap
from dask_marsched.store.spill_tier import SpillTier

#: What the store takes over from `SpillBuffer` and `zict.Buffer`.
_INHERITED = (
    "_capture_metrics",
    "_handle_errors",
    "memory",
    "disk",
)
#: States of tasks that still read their inputs.
_WAITING = frozenset({"waiting", "ready", "constrained", "executing", "long-running"})


def misfits(worker: Any) -> list[str]:
    """Return what in distributed is not as the store expects it; empty if all is well."""
    found = [f"SpillBuffer has no {n}" for n in _INHERITED if not hasattr(SpillBuffer, n)]
    for label, owner in (("worker.memory_manager", "memory_manager"), ("worker.state", "state")):
        if not isinstance(getattr(getattr(worker, owner, None), "data", None), MutableMapping):
            found.append(f"{label}.data is no mapping")
    return found


class NotApplicable(RuntimeError):
    """A worker was set up in such a way that a part has nothing to do there. No defect."""


class _Items(BufferItemsView[Key, object]):
    _mapping: WorkerStore

    def __iter__(self) -> Iterator[tuple[Key, object]]:
        for key in self._mapping:
            try:
                value = self._mapping.peek(key)
            except KeyError:  # gone meanwhile
                continue
            yield key, value


class _Values(BufferValuesView[object]):
    _mapping: WorkerStore

    def __iter__(self) -> Iterator[object]:
        for _, value in _Items(self._mapping):
            yield value


class WorkerStore(SpillBuffer, SpillingBuffer):
    """The data of a worker.

    Parameters
    ----------
    directory : str
        Where the file of spilled chunks is to be.
    target : int
        Bytes of private memory from which on chunks are spilled.
    max_spill : int or False
        Most bytes on disk.
    compression : str, optional
        One of Dask's compressions, or ``auto``; by default nothing is compressed, and chunks are
        mapped back without a copy.
    next_use : callable, optional
        When a key is needed next: the greater, the later; None where it is not known.

    Raises
    ------
    OSError
        If no file can be made in the directory.
    """

    def __init__(
        self,
        directory: str,
        target: int,
        max_spill: int | Literal[False] = False,
        *,
        compression: str | None = None,
        next_use: NextUse | None = None,
    ) -> None:
        #: arrays over a peer's shared memory: that is the peer's, they weigh nothing here
        self.foreign: IdentityMap[Any] = IdentityMap()
        #: gives memory back that is only kept to be used again; called before anything is evicted
        self.give_back: Callable[[], object] | None = None
        tier = SpillTier(directory, max_spill, compression)
        # Past SpillBuffer's own, which makes a directory of files
        super(SpillBuffer, self).__init__(tier, target, self._weigh)
        self.fast.next_use = next_use
        self.logged_pickle_errors = set()
        self.cumulative_metrics = defaultdict(float)

    @property
    def spill_tier(self) -> SpillTier:
        """What is on disk, with its counters."""
        return self.slow

    @property
    def spilled_total(self) -> SpilledSize:
        """Bytes on disk, as they were in memory and as they are there."""
        return self.slow.total_weight

    def _weigh(self, key: Key, value: object) -> int:
        return 0 if value in self.foreign else safe_sizeof(value)

    def __getitem__(self, key: Key) -> object:
        with self._capture_metrics():
            with self.lock:
                weight = self.fast.weights.get(key)
                if weight is not None:
                    context_meter.digest_metric("memory-read", 1, "count")
                    context_meter.digest_metric("memory-read", weight, "bytes")
            # Not SpillBuffer's: another thread may evict the key while that looks at it
            return SpillingBuffer.__getitem__(self, key)

    # -- all of them, while threads move them between tiers --------------------------------

    def __iter__(self) -> Iterator[Key]:
        # In one step: between the tiers one that moves would be missed.
        with self.lock:
            return iter([*self.fast, *self.slow])

    def items(self) -> ItemsView[Key, object]:
        """Return the keys with their values; what is on disk stays there. Skips what is gone."""
        return _Items(self)

    def values(self) -> ValuesView[object]:
        """Return the values; what is on disk stays there. Skips what is gone."""
        return _Values(self)

    def peek(self, key: Key) -> object:
        """Return a value without a change to where it is, or to the order of eviction.

        Raises
        ------
        KeyError
            There is none.
        """
        with self.lock:
            if key in self.fast:
                return self.fast.d[key]
            entry = self.slow.entry(key)
        return self.slow.read(entry)

    # -- moving between tiers --------------------------------------------------------------

    def evict(self) -> int:
        """Move the key that is needed last from memory to disk (see `SpillBuffer.evict`).

        Returns
        -------
        int
            Its bytes; -1 if it could not be written, or if there is none but those that other
            threads are writing: distributed's loop, on the event loop, would ask again at once.
        """
        return self._evict(nodefault)

    def evict_key(self, key: Key) -> int:
        """Move one key from memory to disk. May be called from any thread.

        Returns
        -------
        int
            Its bytes; 0 if it was not in memory any more, -1 if it could not be written: that is
            logged, and it is still in memory. Never raises.
        """
        return self._evict(key)

    def _evict(self, key: Key | NoDefault) -> int:
        if self.give_back is not None:
            self.give_back()
        try:
            with self._capture_metrics(), self._handle_errors(None):
                return int(self.fast.evict(key)[2])
        except HandledError:
            return -1
        except KeyError:
            return -1 if key is nodefault else 0

    def in_memory(self, key: Key) -> object | None:
        """Return what is in memory under a key, or None; the order of eviction stays as it is."""
        return self.fast.d.get(key)

    def exchange(self, key: Key, old: object, new: object) -> None:
        """Let an equal object take the place of one in memory, if that is still there."""
        self.fast.exchange(key, old, new)

    # -- what a quota asks -----------------------------------------------------------------

    @property
    def held(self) -> int:
        """Bytes of the results in memory; what several are views of counts once, and whole."""
        return int(self.fast.total_weight) + self.fast.buffers.hidden

    def evictable(self) -> list[EvictionGroup]:
        """Return the results in memory that can be evicted, with effect, as they leave it."""
        with self.lock:
            weights, buffers = dict(self.fast.weights), self.fast.buffers
            found = list(buffers.together())
            found += [
                EvictionGroup((k,), (), int(w))
                for k, w in weights.items()
                if w and k not in buffers
            ]
        failed = self.logged_pickle_errors
        return [some for some in found if failed.isdisjoint(some.leaving)]

    def part(self, keys: Iterable[Key]) -> None:
        """Give small views memory of their own, so that what they are of can go.

        May be called from any thread. Written to disk they would be contiguous as well.
        """
        for key in keys:
            view = self.in_memory(key)
            if type(view) is np.ndarray:
                own = view.copy(order="K")
                own.flags.writeable = view.flags.writeable
                self.exchange(key, view, own)

    def is_spilled(self, key: Key) -> bool:
        """Tell whether a result is on disk only."""
        return key not in self.fast and key in self.slow

    def takes_more_to_send(self, key: Key) -> bool:
        """Tell whether a result takes its size once more while it is sent."""
        return self.is_spilled(key) or is_strided(self.in_memory(key))

    def load(self, key: Key) -> object:
        """Return a result that may be on disk; raise KeyError if there is none."""
        return self[key]

    # -- what it did -----------------------------------------------------------------------

    def report(self) -> dict[str, int]:
        """Return the bytes in each tier, and counts, as plain values for JSON."""
        spilled = self.spilled_total
        return {
            "memory": self.held,
            "spilled": int(spilled.memory),
            "disk": int(spilled.disk),
            **vars(self.slow.counters),
        }


def order_of_use(worker: Worker) -> NextUse:
    """Return a function that tells which results the tasks waiting on a worker need first."""
    tasks: Any = worker.state.tasks

    def next_use(key: Key) -> Any:
        ts = tasks.get(key)
        if ts is None:
            return None
        # copied in one step: the event loop may add to it meanwhile
        waiting = [d.priority for d in list(ts.dependents) if d.state in _WAITING]
        return min(waiting, default=None)

    return next_use


def install(worker: Worker, *, compression: str | None = None) -> WorkerStore:
    """Give a worker a `WorkerStore` in place of its data, which move there.

    Parameters
    ----------
    worker
        A worker whose data can be spilled.
    compression : str, optional
        See `WorkerStore`.

    Raises
    ------
    NotApplicable
        If the worker's data are not in a `SpillBuffer`: it has no memory limit, or its user gave
        it another mapping. Nothing has been changed.
    RuntimeError
        If distributed is not as expected. Nothing has been changed.
    OSError
        If no file can be made in the worker's directory.
    """
    found = misfits(worker)
    stock: Any = worker.data
    if not found and type(stock) is not SpillBuffer:
        why = "" if worker.memory_manager.memory_limit else ", as it has no memory limit"
        raise NotApplicable(
            f"the worker keeps its data in a {type(stock).__name__}, not in a SpillBuffer{why}"
        )
    if found:
        raise RuntimeError(
            f"distributed {distributed.__version__} is not as the store expects it "
            f"({'; '.join(found)}): the worker keeps its data as they are"
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
    """Give a worker stock data again, if it has this store's.

    A worker that closes keeps them: nobody reads them any more, and to move them takes time.
    """
    if worker.data is not store or worker.status == Status.closing:
        return
    stock = SpillBuffer(
        str(Path(worker.local_directory) / "storage"),
        int(store.fast.n),
        worker.memory_manager.max_spill,
    )
    _exchange_data(worker, store, stock)


def _exchange_data(worker: Worker, old: SpillBuffer, new: SpillBuffer) -> None:
    for key, value in list(old.fast.items()):
        new.set_noevict(key, value)
        del old[key]
    # One by one: these are never in memory all at once
    for key in list(old.slow):
        new[key] = old[key]
        del old[key]
    new.logged_pickle_errors.update(old.logged_pickle_errors)
    new.cumulative_metrics.update(old.cumulative_metrics)
    worker.memory_manager.data = new
    worker.state.data = new
    old.close()
