"""Admits a worker's operands and fetches by their memory need, and evicts to make room for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, cast

from dask.typing import Key
from dask.utils import format_bytes
from distributed import Worker
from distributed.worker_state_machine import TaskState

from dask_marsched.config import Settings
from dask_marsched.fallbacks.counters import Counters
from dask_marsched.fallbacks.guard import guarded
from dask_marsched.host.contract import NotApplicable
from dask_marsched.host.scheduler.task_hints import is_suspicious, known_nbytes
from dask_marsched.host.worker.adapter import LEAVE_TO_DASK, WorkerAdapter
from dask_marsched.host.worker.data import WorkerStore
from dask_marsched.host.worker.peak_memory import PeakMeter
from dask_marsched.policies.footprints import Footprints, KnownMemory
from dask_marsched.policies.memory_needs import NeedModel, OperandKind
from dask_marsched.policies.quota import MemoryNeed, MemoryRequest, Quota
from dask_marsched.worker.evictor import Evictor
from dask_marsched.worker.idle_time import IdleTime

#: To read the resident memory is expensive. It is read again after the time that the process takes
#: to fill the free bytes at this rate (bytes a second), within these bounds (seconds).
_FILLS, _RSS_AGES = 4 << 30, (0.005, 0.25)
#: Seconds between two checks while an operand is deferred: not all releases are signalled.
_WATCH = 0.2
#: Operands below this share of the limit are measured this many times only: a measurement takes
#: 0.2 ms, and an error in a few of them does no harm.
_SMALL, _MEASURED = 1 / 64, 3
#: From this share of the limit on, and where a worker has died of one, operands of a kind that was
#: never measured run one at a time.
_UNTRIED = 1 / 16
#: Share of the limit for each of the two buffers of distributed's shuffles.
_SHUFFLES = 0.1
#: Seconds that the task threads may idle before deferred operands are admitted anyway: running
#: tasks that idle for so long probably wait for one of them.
PATIENCE = 10.0


class Admission:
    """The hooks of a `WorkerAdapter`: asks the quota, learns needs, orders evictions.

    `surplus` returns the bytes of shared memory that the kernel counts in this process, but
    the worker's monitor does not. `install` raises NotApplicable if the worker has no
    memory limit, and RuntimeError if the contract checks fail.
    """

    def __init__(
        self,
        worker: Worker,
        store: WorkerStore,
        settings: Settings,
        surplus: Callable[[], int] = lambda: 0,
    ) -> None:
        self.settings = settings
        self.host = WorkerAdapter(worker, store, self)
        self.counters = Counters()
        self.failure: str | None = None
        #: By decision. `throttled` and `untried` count checks: one that waits counts many times.
        decisions = ("admitted", "deferrals", "forced", "throttled", "untried")
        self.counts = dict.fromkeys(decisions, 0)
        limit = int(self.host.memory_limit * settings.quota_fraction)
        self.quota = Quota(limit)
        self.needs = NeedModel()
        self._meter = PeakMeter()
        self._surplus = surplus
        #: of each admitted operand until it ends
        self._kinds: dict[Key, OperandKind] = {}
        self._deferred: dict[Key, int] = {}
        self._refused_at = 0
        self._footprints = Footprints()
        self._held_seen = 0
        self.evictor = Evictor(self.host, self.counters)
        self._observed = 0.0
        self._watching = False
        self._idle = IdleTime()
        self._warned: set[str] = set()

    def install(self) -> None:
        """Put the quota in force."""
        if not self.host.memory_limit:
            raise NotApplicable("the worker has no memory limit")
        self.host.install()
        self.host.raise_spill_threshold(self.settings.quota_fraction)
        self.host.bound_shuffles(int(self.quota.limit * _SHUFFLES))
        self._refresh(exact=True)

    async def uninstall(self) -> None:
        """Restore the worker. Idempotent."""
        await self.host.uninstall()
        self._meter.close()

    @guarded(lambda: LEAVE_TO_DASK)
    def choose(self, queue: Iterable[TaskState]) -> TaskState | str | None:
        """Return the ready task to start, None for none now."""
        self._refresh()
        queue = iter(queue)
        first = next(queue, None)
        if first is None:
            return None
        kind = self._kind(first)
        need = self._need(first, kind)
        if self.has_half_free() and not self._is_risky(first, need):
            self.quota.grant(MemoryRequest(first.key, need))
            return self._admit(first, kind)
        return self._choose_among(chain([first], queue))

    def _choose_among(self, queue: Iterable[TaskState]) -> TaskState | None:
        """Return the first task that the quota grants; make room if it grants none."""
        asked: dict[Key, tuple[TaskState, OperandKind, MemoryRequest]] = {}

        def requests() -> Iterable[MemoryRequest]:
            for ts in queue:
                kind = self._kind(ts)
                request = MemoryRequest(ts.key, self._need(ts, kind))
                if self._is_being_tried(ts, kind, request.need):
                    self._watch()
                    continue
                asked[ts.key] = ts, kind, request
                yield request

        granted = self.quota.choose(requests())
        if granted is None and asked:
            ts, _, request = next(iter(asked.values()))
            granted = self._refuse(ts, request)
        if granted is None:
            return None
        ts, kind, _ = asked[cast(Key, granted.who)]
        return self._admit(ts, kind)

    def _admit(self, ts: TaskState, kind: OperandKind) -> TaskState:
        self._kinds[ts.key] = kind
        self._deferred.pop(ts.key, None)
        self._idle.stop()
        self.counts["admitted"] += 1
        return ts

    def _is_risky(self, ts: TaskState, need: MemoryNeed) -> bool:
        """Whether an operand may need much, or a worker has died of one like it."""
        return need.total >= _UNTRIED * self.quota.limit or is_suspicious(ts)

    def _is_being_tried(self, ts: TaskState, kind: OperandKind, need: MemoryNeed) -> bool:
        """Whether to wait until another operand of the same kind has been measured."""
        if (
            not self._is_risky(ts, need)
            or not self._meter.available
            or self.needs.is_measured(kind)
        ):
            return False
        running = self._footprints.prefixes()
        if is_suspicious(ts):  # then those that are about to start count as well
            running |= {other.prefix for other in self.host.state.executing}
        if kind.prefix not in running or self._stuck():
            return False
        self.counts["untried"] += 1
        return True

    def _refuse(self, ts: TaskState, request: MemoryRequest) -> MemoryRequest | None:
        """Make room for the first operand of the queue; grant it if nothing else helps."""
        nbytes = request.need.total
        if ts.key not in self._deferred:
            self.counts["deferrals"] += 1
        self._deferred[ts.key] = nbytes
        idle = not self.host.state.executing or self._stuck()
        if idle and self.host.are_storing(self._kinds):
            self.host.poke_soon()
            return None
        inputs = {dep.key for dep in ts.dependencies}
        if idle and self.host.releases_inputs(ts.key):
            # Inputs that are mapped from disk are gone when the task needs most.
            inputs.clear()
        evicting = self.evictor.evict(
            nbytes - self.quota.free, inputs, None if idle else ts.priority
        )
        if idle and not evicting:
            self.counts["forced"] += 1
            self._warn_if_hopeless(ts, nbytes)
            self.quota.grant(request)
            return request
        self._refused_at = self.quota.used
        self._watch()
        return None

    def _warn_if_hopeless(self, ts: TaskState, nbytes: int) -> None:
        limit = self.host.memory_limit
        if nbytes > limit and ts.prefix not in self._warned:
            self._warned.add(ts.prefix)
            self.host.warn(
                f"{ts.key!r} needs about {format_bytes(nbytes)}, more than the memory limit of "
                f"this worker, {format_bytes(limit)}. It is started all the same; should the "
                "worker be killed, use smaller chunks, fewer threads per worker with more memory "
                "each, or raise the memory limit."
            )

    @guarded(lambda: float("inf"))
    def fetchable(self) -> float:
        """Return how many bytes may be in transfer from other workers."""
        self._refresh()
        first = self.host.next_fetch()
        incoming: int = self.host.state.transfer_incoming_bytes
        room = incoming + self.quota.free
        if first is None:
            return room
        nbytes = max(first[0], 1)  # an empty result is fetched too
        if self.quota.fits(nbytes):
            # Small fetches are always admitted: a refused fetch is only retried when memory is
            # released.
            return max(room, incoming + nbytes)
        release_expected = bool(incoming or (self.host.state.executing and not self._stuck()))
        # Without that, results that are read before the fetched one are evicted too.
        evicting = self.evictor.evict(
            nbytes - self.quota.free, (), first[1] if release_expected else None
        )
        if release_expected or evicting:
            self.counts["throttled"] += 1
            self._refused_at = self.quota.used
            self._watch()
            return 0
        return incoming + nbytes

    @guarded(lambda: True)
    def may_load(self, nbytes: int) -> bool:
        """Whether this many bytes may be read from disk for another worker."""
        return self.quota.fits(nbytes)

    @guarded(lambda: False)
    def may_promote(self, key: Key, nbytes: int) -> bool:
        """Whether a result that is read from disk stays in memory.

        A promoted result must be written again to make room, so it must have another reader on
        this worker, or memory must be plentiful.
        """
        if 2 * (self.quota.used + nbytes) < self.quota.limit:
            return True
        readers = self.host.state.tasks[key].dependents
        return sum(d.state in ("waiting", "ready", "constrained") for d in readers) > 0

    @guarded(lambda: None)
    def starting(self, ts: TaskState) -> None:
        """Subtract the inputs loaded by now from the grant, and begin to measure."""
        kind = self._kinds.get(ts.key)
        need = self.quota.grants.get(ts.key)
        if kind is None or need is None:
            return
        if need.inputs:
            left = self.host.missing_inputs(ts)
            self.quota.change(ts.key, MemoryNeed(left, need.output, need.working))
        if self._meter.available:
            expected = need.output + need.working
            if expected >= _SMALL * self.quota.limit or self.needs.seen(kind) < _MEASURED:
                self._lap()
                self._footprints.begin(ts.key, kind, expected)

    @guarded(lambda: None)
    def finished(self, ts: TaskState) -> None:
        """Release inputs and working space; the result is not stored yet."""
        if ts.key in self._footprints:
            self._lap()
            self.needs.observe_footprint(*self._footprints.end(ts.key))
        need = self.quota.grants.get(ts.key)
        if need is not None:
            self.quota.change(ts.key, MemoryNeed(output=need.output))
            self._footprints.grow(need.total)

    @guarded(lambda: None)
    def stimulated(self) -> None:
        """Evict the excess, and retry deferred operands if memory was released."""
        self._settle_ended()
        if self._footprints.are_hidden_by(self.host.store.held, _SMALL * self.quota.limit):
            self._lap()
        if self._is_at_ease():
            return
        self._refresh()
        if self.quota.free < 0:
            self.evictor.evict(-self.quota.free, (), None)
        if self._watching and self.quota.used < self._refused_at:
            self._refused_at = 0
            self.host.poke_soon()

    def _kind(self, ts: TaskState) -> OperandKind:
        inputs = ts.dependencies
        nbytes = sum(dep.nbytes or 0 for dep in inputs) + self.host.received_bytes(ts)
        return OperandKind(ts.prefix, len(inputs), nbytes)

    def _need(self, ts: TaskState, kind: OperandKind) -> MemoryNeed:
        known = known_nbytes(ts)
        output = self.needs.output(kind) if known is None else known
        footprint = self.needs.footprint(kind, output)
        return MemoryNeed(self.host.missing_inputs(ts), output, footprint - output)

    def _is_at_ease(self) -> bool:
        """Whether nothing waits for memory, and half of the quota was free at the last reading."""
        return (
            not self._watching
            and self.has_half_free()
            and time.monotonic() - self._observed < _RSS_AGES[1]
        )

    def has_half_free(self) -> bool:
        """Whether half of the quota is free, so that small operands need not be admitted."""
        quota = self.quota
        return 2 * (quota.used - quota.held + self.host.store.held) <= quota.limit

    def _refresh(self, exact: bool = False) -> None:
        """Update the ledger with the memory of the process."""
        self._settle_ended()
        quota = self.quota
        for ts in self.host.state.long_running:
            # A seceded task may wait for others of its kind; its own share of the memory of the
            # process is unknown.
            quota.release(ts.key)
            self._footprints.drop(ts.key)
        now = time.monotonic()
        held = self.host.store.held
        age = min(max(quota.free / _FILLS, _RSS_AGES[0]), _RSS_AGES[1])
        # Releasing results that are views of others frees no memory of the process.
        left = held < self._held_seen - _SMALL * quota.limit
        if exact or left or now - self._observed > age:
            self._observed, self._held_seen = now, held
            resident = self.host.resident_memory(self._watching or 4 * quota.free < quota.limit)
            counted = resident if self.host.counts_unmanaged() else held
            quota.observe(counted, held, self.host.transfers())
            self._footprints.settle(resident - held, not (quota.grants or quota.transfers))
        else:
            quota.held, quota.transfers = held, self.host.transfers()

    def _settle_ended(self) -> None:
        """Release the grants of operands that have ended.

        Operands cancelled before they start never reach `finished`, so the state machine is asked.
        """
        for key in self.host.ended(self._kinds):
            self.quota.release(key)
            kind, ts = self._kinds.pop(key), self.host.state.tasks.get(key)
            if ts is not None and ts.state == "memory":
                self.needs.observe_output(kind, ts.nbytes or 0)

    def _lap(self) -> None:
        """Divide the peak since the last call among the operands that ran meanwhile."""
        # Inputs that may be released before the peak count as working space.
        inputs = sum(
            need.inputs
            for key, need in self.quota.grants.items()
            if need.inputs > 0 and not self.host.releases_inputs(key)
        )
        known = KnownMemory(self.host.store.held, self.host.transfers(), self._surplus(), inputs)
        self._footprints.lap(self._meter.lap(), known)

    def _watch(self) -> None:
        if not self._watching:
            self._watching = True
            self._idle.start()
            asyncio.get_running_loop().call_later(_WATCH, self._look)

    @guarded(lambda: None)
    def _look(self) -> None:
        self._watching = False
        if not self.host.installed:
            return
        self._idle.check(_WATCH)
        ready = {ts.key for ts in self.host.state.ready} | {
            ts.key for ts in self.host.state.constrained
        }
        self._deferred = {k: n for k, n in self._deferred.items() if k in ready}
        self.quota.keep_only(ready)
        # `choose` and `fetchable` watch again if they still refuse something.
        self.host.poke()
        if not self._watching:
            self._idle.stop()

    def _stuck(self) -> bool:
        """Whether the running operands seem to wait for a deferred one."""
        return self._idle.seconds() > PATIENCE

    def report(self) -> dict[str, Any]:
        """Return the state of the ledger, and counts, as plain values for JSON."""
        self._refresh(exact=True)
        quota = self.quota
        return {
            "limit": quota.limit,
            "used": quota.used,
            "promised": quota.promised,
            "queued": sum(self._deferred.values()),
            "held": quota.held,
            "transfers": quota.transfers,
            "unmanaged": quota.unmanaged,
            **self.counts,
            **self.evictor.counts,
            **self.counters.failures(),
        }
