"""Fetches chunks of other workers on this host by mapping their shared memory."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import replace
from time import monotonic, time
from typing import Any

from dask.typing import Key
from distributed import Worker
from distributed.comm import Comm
from distributed.core import Status, send_recv
from distributed.worker_state_machine import (
    ExecuteSuccessEvent,
    GatherDepNetworkFailureEvent,
    GatherDepSuccessEvent,
    ReleaseWorkerDataMsg,
)

from dask_marsched.host.contract import explain, misfits_of_function, misfits_of_paths
from dask_marsched.host.replacements import Replacements, weakly
from dask_marsched.host.scheduler.adopters import KEPT, READY
from dask_marsched.host.worker import nanny
from dask_marsched.host.worker.adoption import ResultAdopter, make_object
from dask_marsched.host.worker.data import WorkerStore
from dask_marsched.host.worker.publishing import Published, Publisher
from dask_marsched.host.worker.retention import ResultRetainer
from dask_marsched.store.arena import Arena, segment_size
from dask_marsched.store.attachment import Attachments, ChunkGoneError
from dask_marsched.store.charge import Charge, charged_memory, shared_surplus, write_charge
from dask_marsched.store.frames import is_plain_array
from dask_marsched.store.presence import claim, is_claimed
from dask_marsched.store.segment import Handle

logger = logging.getLogger("dask_marsched")

# Sent only to workers whose claim is found, so that stock workers never see it.
OPERATION = "marsched_handles"
ADOPTION, ADOPTED = "marsched_adopt", "marsched_adopted"

# Seconds for which a claim is trusted; a worker takes longer to restart.
_CLAIM_LASTS = 1.0
_NOTHING = Charge(0, 0, 0)
# Shared memory unused for this many seconds returns to the system. Finding its pages again costs
# more than a copy into them, so short pauses must keep it.
_TIDY = 5.0
# Seconds between two looks for results in memory whose owner has released it or has died.
_WEIGHED = 1.0
# After this many failures in a row a peer's memory counts as impossible to map from here.
_MOST_FAILURES = 3

#: Events of the state machine that are created or changed, with the fields used.
_EVENTS: dict[Any, tuple[str, ...]] = {
    GatherDepSuccessEvent: ("worker", "total_nbytes", "data", "stimulus_id"),
    GatherDepNetworkFailureEvent: ("worker", "total_nbytes", "stimulus_id"),
    ExecuteSuccessEvent: ("key", "value", "nbytes", "start", "stop"),
    ReleaseWorkerDataMsg: ("key", "stimulus_id"),
}


def misfits(worker: Any) -> list[str]:
    """Return how a worker differs from what the transfer expects; empty if it does not."""
    names = ("execute", "gather_dep", "handlers", "nanny", "rpc", "transfer_incoming_log")
    functions = {
        "worker.monitor.get_process_memory": (),
        "worker.update_data": ("data",),
    }
    found = misfits_of_paths(worker, {"worker": names}, functions)
    for event, fields in _EVENTS.items():
        found += misfits_of_function(event.__name__, event, "__init__", fields)
    return found


class _Unreachable(OSError):
    """The peer cannot be reached, or no longer."""


class HandleTransfer:
    """Maps chunks of at least ``least`` bytes of peers into a worker, and publishes its own.

    `cap` bounds the published bytes. After our own errors, reported to `caught`, stock code runs.
    With `announces` the scheduler learns where chunks are; with `keep` all results are retained.
    """

    def __init__(
        self,
        worker: Worker,
        store: WorkerStore,
        *,
        cap: int,
        least: int,
        caught: Callable[[str, Exception], None],
        announces: bool = False,
        keep: bool = False,
    ) -> None:
        self._announces = announces
        self._keeps = keep
        self.worker: Any = worker
        self.store = store
        self.cap = cap
        self.least = least
        # Chunks, and their bytes, that were mapped or fetched as in stock Dask, and chunks taken
        # over from workers that died.
        counted = ("by_handle", "bytes_by_handle", "by_comm", "bytes_by_comm", "adopted")
        self.counters = dict.fromkeys(counted, 0)
        #: large chunks of this host that were fetched: mapping ``failed`` or ``not published``
        self.fallbacks: Counter[str] = Counter()
        #: why nothing is shared; None if it is
        self.reason: str | None = "not started"
        self.arena: Arena | None = None
        self.attachments = Attachments()
        self._caught = caught
        self._failures: Counter[str] = Counter()
        self._seen: dict[str, float] = {}
        self._claim: ExitStack | None = None
        #: waits for the nanny, which answers only after the worker has started
        self.starting: asyncio.Task[None] | None = None
        self._charged = _NOTHING
        self._tidied = self._weighed = 0.0
        self._undo = Replacements()
        self.publisher = Publisher(worker, store, least=least, caught=caught)
        self._adopter = ResultAdopter(worker, store, self.attachments, self.counters, caught)

    def start(self) -> None:
        """Start sharing once the nanny has provided memory; else `reason` says why not."""
        self.starting = asyncio.create_task(self._start())

    async def _start(self) -> None:
        worker = self.worker
        found = misfits(worker)
        if found:
            self.reason = explain(found, "all chunks are sent")
            logger.warning("%s", self.reason)
            return
        self.reason = "waiting for the nanny"
        try:
            size = segment_size(self.cap)
            segment = await nanny.run_in_nanny(worker, nanny.own_segment, size=size)
            self.arena = Arena(segment, self.cap, worker.state.nthreads)
            self._claim = claim([worker.address, worker.contact_address or worker.address])
        except Exception as error:
            self.arena = None
            self.reason = f"{error}: all chunks are sent"
            if not isinstance(error, OSError):
                self._caught("start", error)
            return
        undo = self._undo
        self._stock = undo.attribute(worker, "gather_dep", self._gather_dep)
        worker.handlers[OPERATION] = weakly(self._publish_for_peer)
        worker.handlers[ADOPTION] = weakly(self._adopter.adopt)
        worker.stream_handlers[ADOPTED] = self._adopter.accept
        retainer = None
        if self._announces and self._keeps:
            retainer = ResultRetainer(self.publisher, self.arena, self._caught)
        announce = self._announce if self._announces else None
        self.publisher.install(self.arena, announce, retainer)
        memory = self._process_memory
        self._stock_memory = undo.attribute(worker.monitor, "get_process_memory", memory)
        undo.attribute(self.store, "give_back", self.arena.trim)
        self.reason = None
        if self._announces:
            worker.log_event(READY, worker.address)

    async def uninstall(self) -> None:
        """Restore the worker; mappings and published chunks stay valid. Idempotent."""
        if self.starting is not None:
            self.starting.cancel()
            await asyncio.wait([self.starting])
        self.publisher.close()
        if self._claim is None or self.arena is None:
            return
        self._claim.close()
        self._claim = None
        self.attachments.retire()
        self.reason = "removed from the worker"
        worker = self.worker
        self.publisher.uninstall()
        self._undo.close()
        worker.handlers.pop(OPERATION, None)
        worker.handlers.pop(ADOPTION, None)  # that of ADOPTED stays: one may be on its way
        self.arena.close()
        if worker.status not in (Status.running, Status.paused):
            return  # a closing nanny no longer answers, and releases the segment itself
        try:
            await nanny.run_in_nanny(worker, nanny.give_up_segment)
        except OSError as error:
            self._caught("give_up_segment", error)

    def report(self) -> dict[str, Any]:
        """Return what is shared now, bytes, and counts, as plain values for JSON."""
        arena = self.arena
        return {
            "published": arena.live if arena is not None else 0,
            "filled": arena.filled if arena is not None else 0,
            "made_here": arena.made_here if arena is not None else 0,
            "mapped": self.attachments.mapped,
            "ahead": self.publisher.ahead,
            "ahead_read": self.publisher.ahead_read,
            **self.counters,
            "fallbacks": dict(self.fallbacks),
        }

    def surplus(self) -> int:
        """Return how far the kernel's count of this process' memory exceeds ours, bytes."""
        # The difference is in shared pages; it is negative if we hold pages never touched here.
        if self._claim is None or self.arena is None:
            return 0
        charge = self._charge(self.arena)
        if not charge.mapped:
            return 0
        try:
            return shared_surplus("self", charge)
        except OSError as error:
            self._caught("surplus", error)
            return 0

    def _charge(self, arena: Arena) -> Charge:
        filled, addresses = arena.filled, self.attachments.addresses
        if not filled and not addresses:
            return _NOTHING
        # The arena's pages may be mapped three times: shared, as private copy, and as chunks.
        return Charge(arena.held(), self.attachments.orphaned, 3 * filled + addresses)

    def _process_memory(self) -> int:
        arena = self.arena
        assert arena is not None
        try:
            charge = self._charge(arena)
            self._tidy(monotonic(), charge)
            if charge != self._charged:
                write_charge(arena.fd, charge)
                self._charged = charge
            if charge.mapped:
                return charged_memory("self", charge)
        except OSError as error:
            self._caught("process_memory", error)
        return int(self._stock_memory())

    def _tidy(self, now: float, charge: Charge) -> None:
        self.attachments.sweep(now)
        if charge.adopted and now - self._weighed > _WEIGHED:
            self._weighed = now
            self.store.weigh_orphans(self.attachments.orphans())
        if now - self._tidied > _TIDY:
            self._tidied = now
            self.publisher.give_back()

    async def _publish_for_peer(self, comm: Comm, keys: Collection[Key]) -> Any:
        published: dict[Key, tuple[Handle, object]] = {}
        for key in keys:
            try:
                found = await self.publisher.publish(key)
            except Exception as error:
                self._caught("publish", error)
                continue
            if found is not None:
                published[key] = found
        handles = {key: handle.to_message() for key, (handle, _) in published.items()}
        try:
            await comm.write({"status": "OK", "handles": handles})
            # `published` keeps the chunks until the peer has locked them.
            await comm.read()
        except OSError:
            comm.abort()
        return Status.dont_reply

    def _announce(self, key: Key, handle: Handle, stamp: int) -> None:
        where = (self.worker.address, key, handle.to_message(), stamp)
        # `log_event` refuses what is in some of Dask's own keys, such as NumPy's integers.
        self.worker.batched_send({"op": "log-event", "topic": KEPT, "msg": where})

    def announce_again(self) -> None:
        """Tell a scheduler that was restarted that this worker shares its memory, and what."""
        if self._announces and self.reason is None:
            self.worker.log_event(READY, self.worker.address)
            self.publisher.announce_again()

    async def _gather_dep(
        self, worker: str, to_gather: Collection[Key], total_nbytes: int, *, stimulus_id: str
    ) -> Any:
        with self._adopter.gathering_from(worker):
            return await self._gather(worker, to_gather, total_nbytes, stimulus_id)

    async def _gather(
        self, worker: str, to_gather: Collection[Key], total_nbytes: int, stimulus_id: str
    ) -> Any:
        tasks = self.worker.state.tasks
        sizes = {key: tasks[key].get_nbytes() for key in to_gather}
        received = await self.fetch(worker, [k for k, n in sizes.items() if n >= self.least])
        if received is None:
            # A stock fetch would try to connect to a dead process for half a minute, and the
            # scheduler's message about its death may have arrived already.
            return GatherDepNetworkFailureEvent(
                worker=worker,
                total_nbytes=total_nbytes,
                stimulus_id=f"gather-dep-network-failure-{time()}",
            )
        rest = [key for key in to_gather if key not in received]
        if rest:
            event = await self._stock(worker, rest, total_nbytes, stimulus_id=stimulus_id)
            if not isinstance(event, GatherDepSuccessEvent):
                return event  # mapped chunks are requested again with the rest
            self.counters["by_comm"] += len(event.data)
            self.counters["bytes_by_comm"] += sum(sizes.get(key, 0) for key in event.data)
        self.counters["by_handle"] += len(received)
        self.counters["bytes_by_handle"] += sum(sizes[key] for key in received)
        if rest:
            return replace(event, data={**event.data, **received}) if received else event
        return GatherDepSuccessEvent(
            worker=worker,
            total_nbytes=total_nbytes,
            data=received,
            stimulus_id=f"gather-dep-success-{time()}",
        )

    async def fetch(self, address: str, keys: list[Key]) -> dict[Key, object] | None:
        """Map a peer's published chunks; None if it is unreachable. Never raises an Exception."""
        if not keys or self._failures[address] >= _MOST_FAILURES or not self._is_local(address):
            return {}
        start = time()
        try:
            received = await self._map_from(address, keys)
        except Exception as error:
            self._failures[address] += 1
            self._seen.pop(address, None)
            self.fallbacks["failed"] += len(keys)
            if not isinstance(error, OSError):
                self._caught("fetch", error)
            return None if isinstance(error, _Unreachable) else {}
        self._failures.pop(address, None)
        self.fallbacks["not published"] += len(keys) - len(received)
        if received:
            self._log(address, list(received), start, time())
        return received

    def _is_local(self, address: str) -> bool:
        now = monotonic()
        if now - self._seen.get(address, -_CLAIM_LASTS) < _CLAIM_LASTS:
            return True
        if not is_claimed(address):
            return False
        self._seen[address] = now
        return True

    async def _map_from(self, address: str, keys: list[Key]) -> dict[Key, object]:
        rpc = self.worker.rpc
        try:
            comm = await rpc.connect(address)
        except OSError as error:
            raise _Unreachable from error
        try:
            try:
                response = await send_recv(comm, op=OPERATION, keys=keys)
            except OSError as error:
                raise _Unreachable from error
            if response is None:  # the plugin has just been removed from the peer
                self._seen.pop(address, None)
                return {}
            received = {}
            for key, message in response["handles"].items():
                handle = Handle.from_message(message)
                try:
                    mapping = self.attachments.map(handle)
                except ChunkGoneError:  # the peer has mapped it from another one, which released it
                    continue
                value = await make_object(handle, mapping.frames(handle.lengths))
                if is_plain_array(value):
                    self.store.foreign.set(value, Published(handle, mapping))
                received[key] = value
            await comm.write("OK")
        except BaseException:
            comm.abort()  # in the middle of an exchange it cannot be reused
            raise
        finally:
            rpc.reuse(address, comm)
        return received

    def _log(self, address: str, keys: list[Key], start: float, stop: float) -> None:
        # As distributed does, except for the bandwidth, which the scheduler would take for the
        # network's.
        worker = self.worker
        tasks = [worker.state.tasks[key] for key in keys if key in worker.state.tasks]
        delay = worker.scheduler_delay
        span = {"start": start + delay, "stop": stop + delay}
        total = sum(ts.get_nbytes() for ts in tasks)
        duration = max(0.001, stop - start)
        for ts in tasks[:1]:
            cause = next(iter(ts.dependents), ts)
            cause.startstops.append({"action": "transfer", **span, "source": address})
        worker.transfer_incoming_log.append(
            {
                **span,
                "middle": (start + stop) / 2 + delay,
                "duration": duration,
                "keys": {ts.key: ts.nbytes for ts in tasks},
                "total": total,
                "bandwidth": total / duration,
                "who": address,
            }
        )
