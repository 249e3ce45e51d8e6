"""Fetching the chunks of another worker of this host by mapping them, not by copying.

A worker that shares memory answers one message more, and claims its address. Only workers that see
the claim send that message: others are never told anything that stock Dask does not know. What
cannot be had in this way, for whatever reason, is fetched as always.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from time import monotonic, time
from typing import Any

import distributed
from dask.typing import Key
from distributed import Worker
from distributed.comm import Comm
from distributed.core import Status, send_recv
from distributed.worker_state_machine import (
    ExecuteSuccessEvent,
    GatherDepNetworkFailureEvent,
    GatherDepSuccessEvent,
)

from dask_marsched.host.scheduler.adoption import KEPT
from dask_marsched.host.scheduler.heirs import READY
from dask_marsched.host.worker import adoption, nanny
from dask_marsched.host.worker.adoption import ResultAdopter, TransferCounters, make_object
from dask_marsched.host.worker.data import WorkerStore
from dask_marsched.host.worker.publishing import Published, Publisher
from dask_marsched.host.worker.retention import ResultRetainer
from dask_marsched.store.arena import Arena, segment_size
from dask_marsched.store.attachment import Attachments
from dask_marsched.store.charge import Charge, charged_memory, shared_surplus, write_charge
from dask_marsched.store.frames import is_plain_array
from dask_marsched.store.presence import AddressClaim, is_claimed
from dask_marsched.store.segment import Handle

OPERATION = "marsched_handles"
ADOPTION = "marsched_adopt"

# For so long a claim that was seen is believed, seconds: a worker takes longer to restart.
_CLAIM_LASTS = 1.0
_NOTHING = Charge(0, 0)
# Shared memory that has not been needed for so long goes back to the system, seconds. To find its
# pages anew takes longer than to copy into them: a pause between two steps is not to cost it.
_TIDY = 5.0
# After so many failures in a row a peer's memory is left alone: it cannot be mapped from here.
_PATIENCE = 3

#: Events of the state machine that are made or changed, with the fields that are used.
_EVENTS: dict[Any, set[str]] = {
    GatherDepSuccessEvent: {"worker", "total_nbytes", "data", "stimulus_id"},
    GatherDepNetworkFailureEvent: {"worker", "total_nbytes", "stimulus_id"},
    ExecuteSuccessEvent: {"key", "value", "nbytes", "start", "stop"},
    **adoption.EVENTS,
}


def misfits(worker: Any) -> list[str]:
    """Return what in a worker is not as the transfer expects it; empty if all is well."""
    names = (
        "execute", "gather_dep", "handlers", "monitor", "nanny", "rpc", "transfer_incoming_log",
    )  # fmt: skip
    found = [f"Worker has no attribute {n}" for n in names if not hasattr(worker, n)]
    if not callable(getattr(getattr(worker, "monitor", None), "get_process_memory", None)):
        found.append("the worker's monitor has no get_process_memory")
    for event, expected in _EVENTS.items():
        fields = set(event.__dataclass_fields__)
        found += [f"{event.__name__} has no {n}" for n in sorted(expected - fields)]
    return found


class _Unreachable(OSError):
    """There is no connection to a peer, or none any more."""


class HandleTransfer:
    """Maps chunks of peers into a worker, and publishes its own.

    Parameters
    ----------
    worker
        The worker.
    store : WorkerStore
        Its data.
    cap : int
        Most bytes of shared memory for its chunks.
    least : int
        Chunks of fewer bytes are fetched as always.
    caught : callable
        Told of exceptions of ours: (where, exception). What failed falls back to stock.
    announces : bool
        Whether the scheduler is told of what is published, so that it can outlive the worker.
    keep : bool
        Whether all results are published.

    Attributes
    ----------
    reason : str or None
        Why nothing is shared; None if it is.
    arena : Arena or None
        Where it publishes; None if nothing is shared.
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
        self.counters = TransferCounters()
        self.reason: str | None = "not started"
        self.arena: Arena | None = None
        self.attachments = Attachments()
        self._caught = caught
        self._failures: Counter[str] = Counter()
        self._seen: dict[str, float] = {}
        self._claim: AddressClaim | None = None
        self._starting: asyncio.Task[None] | None = None
        self._charged = _NOTHING
        self._tidied = 0.0
        self.publisher = Publisher(worker, store, least=least, caught=caught)
        self._taking_over = ResultAdopter(worker, store, self.attachments, self.counters, caught)

    # -- installing ------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to share, as soon as there is memory for it; `reason` says why there is none."""
        self._starting = asyncio.create_task(self._start())

    async def started(self) -> None:
        """Wait until it is decided whether anything is shared.

        Not for what a starting worker awaits: its nanny answers only afterwards.
        """
        if self._starting is not None:
            await asyncio.wait([self._starting])

    async def _start(self) -> None:
        worker = self.worker
        found = misfits(worker)
        if found:
            self.reason = (
                f"distributed {distributed.__version__} is not as same-host transfer expects it "
                f"({'; '.join(found)}): all chunks are sent"
            )
            return
        self.reason = "waiting for the nanny"
        try:
            segment = await nanny.ask_for_segment(worker, segment_size(self.cap))
            self.arena = Arena(segment, self.cap, worker.state.nthreads)
            self._claim = AddressClaim([worker.address, worker.contact_address or worker.address])
        except Exception as error:
            self.arena = None
            self.reason = f"{error}: all chunks are sent"
            if not isinstance(error, OSError):
                self._caught("start", error)
            return
        self._stock: Callable[..., Any] = worker.gather_dep
        self._stock_memory: Callable[[], int] = worker.monitor.get_process_memory
        worker.handlers[OPERATION] = self._publish_for_peer
        worker.gather_dep = self._gather_dep
        worker.handlers[ADOPTION] = self._taking_over.adopt
        if self._announces:
            retainer = None
            if self._keeps:
                retainer = ResultRetainer(self.publisher, self.arena, self._caught)
            self.publisher.announce_to(self._announce, retainer)
        self.publisher.install(self.arena)
        worker.monitor.get_process_memory = self._process_memory
        self.store.give_back = self.arena.trim
        self.reason = None
        if self._announces:
            worker.log_event(READY, worker.address)

    async def uninstall(self) -> None:
        """Restore the worker. What is mapped or published stays as it is. Idempotent."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        self.publisher.close()
        if self._claim is None or self.arena is None:
            return
        self._claim.close()
        self._claim = None
        self.attachments.retire()
        self.reason = "removed from the worker"
        worker = self.worker
        self.publisher.uninstall()
        del worker.gather_dep, worker.monitor.get_process_memory
        worker.handlers.pop(OPERATION, None)
        worker.handlers.pop(ADOPTION, None)
        self.store.give_back = None
        self.arena.close()
        if worker.status not in (Status.running, Status.paused):
            return  # a nanny that closes listens no more, and lets go by itself
        try:
            await nanny.give_up_segment(worker)
        except OSError as error:
            self._caught("give_up_segment", error)

    def report(self) -> dict[str, Any]:
        """Return what is shared now, bytes, and counts, as plain values for JSON."""
        arena = self.arena
        return {
            "published": arena.live if arena is not None else 0,
            "filled": arena.filled if arena is not None else 0,
            "made_here": arena.counters.made_here if arena is not None else 0,
            "mapped": self.attachments.mapped,
            "ahead": self.publisher.ahead,
            "ahead_read": self.publisher.ahead_read,
            **vars(self.counters),
            "fallbacks": dict(self.counters.fallbacks),
        }

    def surplus(self) -> int:
        """Return how much more the kernel counts as this process' memory than is told, bytes.

        These are pages of shared memory. Less than 0 where it has not looked at all it holds.
        """
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
        attachments = self.attachments
        if not arena.filled and not attachments.addresses:
            return _NOTHING
        # Once as the arena's memory, once as its private copy, once as mappings of chunks
        return Charge(arena.held() + attachments.orphaned, 3 * arena.filled + attachments.addresses)

    def _process_memory(self) -> int:
        arena = self.arena
        assert arena is not None
        charge = self._charge(arena)
        try:
            self._tidy(monotonic())
            if charge != self._charged:
                write_charge(arena.fd, charge)
                self._charged = charge
            return charged_memory("self", charge) if charge.mapped else self._stock_memory()
        except OSError as error:
            self._caught("process_memory", error)
            return self._stock_memory()

    def _tidy(self, now: float) -> None:
        """Let go, now and then, of what is only kept to be used again."""
        self.attachments.sweep(now)
        if now - self._tidied > _TIDY:
            self._tidied = now
            self.publisher.give_back()

    # -- the side that has the chunks ------------------------------------------------------

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
            # Until the peer has locked them, they are kept by what is in `published`
            await comm.read()
        except OSError:
            comm.abort()
        return Status.dont_reply

    # -- outliving the worker --------------------------------------------------------------

    def _announce(self, key: Key, handle: Handle, stamp: int) -> None:
        where = (self.worker.address, key, handle.to_message(), stamp)
        self.worker.log_event(KEPT, where)

    # -- the side that wants them ----------------------------------------------------------

    async def _gather_dep(
        self, worker: str, to_gather: Collection[Key], total_nbytes: int, *, stimulus_id: str
    ) -> Any:
        with self._taking_over.gathering_from(worker):
            return await self._gather(worker, to_gather, total_nbytes, stimulus_id)

    async def _gather(
        self, worker: str, to_gather: Collection[Key], total_nbytes: int, stimulus_id: str
    ) -> Any:
        tasks = self.worker.state.tasks
        sizes = {key: tasks[key].get_nbytes() for key in to_gather}
        received = await self.fetch(worker, [k for k, n in sizes.items() if n >= self.least])
        if received is None:
            # Not as always: to connect to a process that is gone is tried for half a minute, and
            # the scheduler's word that it is gone has perhaps been heard already.
            return GatherDepNetworkFailureEvent(
                worker=worker,
                total_nbytes=total_nbytes,
                stimulus_id=f"gather-dep-network-failure-{time()}",
            )
        rest = [key for key in to_gather if key not in received]
        self.counters.by_handle += len(received)
        self.counters.bytes_by_handle += sum(sizes[key] for key in received)
        if rest:
            event = await self._stock(worker, rest, total_nbytes, stimulus_id=stimulus_id)
            if not isinstance(event, GatherDepSuccessEvent):
                return event  # what was mapped is asked for again, together with the rest
            self.counters.by_comm += len(event.data)
            self.counters.bytes_by_comm += sum(sizes.get(key, 0) for key in event.data)
            if not received:
                return event
            return replace(event, data={**event.data, **received})
        return GatherDepSuccessEvent(
            worker=worker,
            total_nbytes=total_nbytes,
            data=received,
            stimulus_id=f"gather-dep-success-{time()}",
        )

    async def fetch(self, address: str, keys: list[Key]) -> dict[Key, object] | None:
        """Return those of a peer's chunks that could be mapped; None if there is no connection.

        Never raises an Exception.
        """
        if not keys or self._failures[address] >= _PATIENCE or not self._is_here(address):
            return {}
        start = time()
        try:
            received = await self._map_from(address, keys)
        except Exception as error:
            self._failures[address] += 1
            self._seen.pop(address, None)
            self.counters.fallbacks["failed"] += len(keys)
            if not isinstance(error, OSError):
                self._caught("fetch", error)
            return None if isinstance(error, _Unreachable) else {}
        self._failures[address] = 0
        self.counters.fallbacks["not published"] += len(keys) - len(received)
        if received:
            self._log(address, list(received), start, time())
        return received

    def _is_here(self, address: str) -> bool:
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
            received = {}
            for key, message in response["handles"].items():
                handle = Handle.from_message(message)
                mapping = self.attachments.map(handle)
                value = await make_object(handle, mapping.frames(handle.lengths))
                if is_plain_array(value):
                    self.store.foreign.set(value, Published(handle, mapping))
                received[key] = value
            await comm.write("OK")
        except BaseException:
            comm.abort()  # the peer is in the middle of this exchange
            raise
        finally:
            rpc.reuse(address, comm)
        return received

    def _log(self, address: str, keys: list[Key], start: float, stop: float) -> None:
        # As distributed does it, but for the bandwidth: the scheduler takes that for the network's.
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
