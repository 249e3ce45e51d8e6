"""Taking over the results of a worker that died, before anything is computed again.

What a worker has put into shared memory belongs to its nanny, and outlives it. `remove_worker`
releases what only that worker had before any plugin hears of it: here other workers of its host,
or the process that its nanny starts in its place, map it first, and the scheduler is told that they
have it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Set
from typing import Any

from dask.typing import Key
from distributed.core import Status
from distributed.metrics import time
from distributed.scheduler import Scheduler, TaskState, WorkerState

from dask_marsched.host.contract import demand
from dask_marsched.host.scheduler import departed_workers
from dask_marsched.host.scheduler.departed_workers import GivenAway, StandingIn
from dask_marsched.host.scheduler.heirs import Heirs

#: Topic of the events that tell the scheduler where results are.
KEPT = "marsched-kept"

#: Most seconds that a removal waits for the others. Mapping takes milliseconds.
_PATIENCE = 5.0
_UNREGISTER = "unregister"


def misfits(scheduler: Any) -> list[str]:
    """Return what in a scheduler is not as adoption expects it; empty if all is well."""
    handler = getattr(scheduler, "handlers", {}).get(_UNREGISTER)
    found = []
    if getattr(handler, "__name__", None) != "remove_worker":
        found.append(f"the handler {_UNREGISTER!r} is not Scheduler.remove_worker")
    parameters = inspect.signature(type(scheduler).remove_worker).parameters
    found += [
        f"Scheduler.remove_worker takes no {name!r}"
        for name in ("address", "stimulus_id")
        if name not in parameters
    ]
    return found + departed_workers.misfits(scheduler)


class Adoption:
    """Has the workers of a host take over the results of one that dies.

    Parameters
    ----------
    scheduler
        The scheduler.
    caught
        Told of exceptions of ours: (where, exception). What failed is computed again.
    patience
        Seconds to wait for a worker that can take over, where there is none on the host.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        caught: Callable[[str, Exception], None],
        patience: float = 0.0,
    ) -> None:
        self.scheduler: Any = scheduler
        self.heirs = Heirs(scheduler)
        self._patience = patience
        self._standing_in = StandingIn(scheduler, caught)
        self._caught = caught
        # By worker: each host may have it, and of those that do one may drop it, or die.
        self._kept: dict[Key, dict[str, tuple[Any, int]]] = {}
        self._under_way: dict[str, asyncio.Future[Set[WorkerState]]] = {}
        self._adopted: dict[str, int] = {}
        self._moved: dict[str, list[Key]] = {}
        self._handler: Any = None

    def install(self) -> None:
        """Come before whatever removes a worker.

        Raises
        ------
        RuntimeError
            This version of distributed is not as expected; nothing has been changed.
        """
        s = self.scheduler
        demand(misfits(s), "results of dead workers are not taken over")
        self._handler = s.handlers[_UNREGISTER]
        s.remove_worker = self._remove_worker
        s.handlers[_UNREGISTER] = self._remove_worker
        self._standing_in.install()

    def uninstall(self) -> None:
        """Restore the scheduler. Idempotent."""
        s = self.scheduler
        if self._handler is not None:
            vars(s).pop("remove_worker", None)
            s.handlers[_UNREGISTER] = self._handler
            self._handler = None
        self._standing_in.uninstall()
        self.heirs.clear()
        self._kept.clear()

    def announced(self, worker: str, key: Key, handle: Any, stamp: int) -> None:
        """Take note of where a worker keeps a result."""
        s = self.scheduler
        # It may come late. What is known of a task that is forgotten would never be dropped.
        if key in s.tasks and worker in s.workers:
            self._kept.setdefault(key, {})[worker] = (handle, stamp)

    def forget(self, key: Key) -> None:
        """Take note that a result is released."""
        self._kept.pop(key, None)

    def kept(self) -> set[Key]:
        """Return the keys of the results that outlive their worker's process."""
        tasks = self.scheduler.tasks
        return {key for key in self._kept if key in tasks and self.keepers(tasks[key])}

    def keepers(self, ts: TaskState) -> list[WorkerState]:
        """Return the workers that hold a result so that it outlives their processes."""
        found = map(self.scheduler.workers.get, self._kept.get(ts.key, ()))
        return [ws for ws in found if ws is not None and ws in (ts.who_has or ())]

    def adopted(self, worker: str) -> int:
        """Return how many results of a worker that was removed were taken over; asked once."""
        return self._adopted.pop(worker, 0)

    def given_away(self, worker: str) -> GivenAway | None:
        """Return what a worker that was removed had to do, if its removal waited; asked once."""
        return self._standing_in.given_away(worker)

    async def _remove_worker(self, address: str, *, stimulus_id: str, **kwargs: Any) -> Any:
        s = self.scheduler
        address = s.coerce_address(address)
        if address in self._standing_in:
            return "OK"  # the nanny starts no other process before it has this answer
        dying: Set[WorkerState] = set()
        if s.workers.get(address) is not None:
            try:
                dying = await self._once(address)
            except Exception as error:
                self._caught("adopt", error)
        ws = s.workers.get(address)
        if ws is None or kwargs.get("expected") or not self._needs_an_heir(ws, dying):
            return await self._remove(address, stimulus_id, kwargs)
        if address not in self._standing_in:
            self._standing_in.hold(
                ws,
                stimulus_id,
                self._wait_for_heirs(ws),
                lambda: self._remove(address, stimulus_id, kwargs),
            )
        return "OK"

    def _needs_an_heir(self, ws: WorkerState, dying: Set[WorkerState]) -> bool:
        """Return whether it pays to wait for a worker that takes over."""
        return bool(
            self._patience
            and self.scheduler.status == Status.running
            and ws.status in (Status.running, Status.paused)
            and dying >= set(self.heirs.of(ws))
            and self._alone_here(ws)
        )

    async def _wait_for_heirs(self, ws: WorkerState) -> None:
        """Have a worker's results taken over by the next that can; should that die, by another."""
        until = time() + self._patience
        while (seconds := until - time()) > 0:
            came = await self.heirs.wait(ws, seconds)
            if not await self._once(ws.address) or not came:
                return

    async def _remove(self, address: str, stimulus_id: str, kwargs: dict[str, Any]) -> Any:
        """Remove a worker whose results have been taken over, as far as that can be."""
        s = self.scheduler
        for key in [key for key, where in self._kept.items() if where.pop(address, None)]:
            if not self._kept[key]:
                del self._kept[key]
        answer = await type(s).remove_worker(s, address, stimulus_id=stimulus_id, **kwargs)
        self.heirs.gone(address)
        try:
            self._redirect(self._moved.pop(address, []), stimulus_id)
        except Exception as error:
            self._caught("adopt", error)
        return answer

    def _redirect(self, keys: list[Key], stimulus_id: str) -> None:
        """Tell workers that are to read results where these are now.

        In stock Dask what reads a lost result is sent anew. Here it stays with its worker, which
        would wait for its next look at what is missing: once a second.
        """
        s = self.scheduler
        waiting: dict[str, dict[Key, list[str]]] = {}
        for ts in filter(None, map(s.tasks.get, keys)):
            there = [ws.address for ws in ts.who_has or ()]
            for address in {dts.processing_on.address for dts in ts.waiters if dts.processing_on}:
                waiting.setdefault(address, {})[ts.key] = there
        for address, who_has in waiting.items():
            message = {"op": "refresh-who-has", "who_has": who_has, "stimulus_id": stimulus_id}
            s.worker_send(address, message)

    async def _once(self, address: str) -> Set[WorkerState]:
        """Have a worker's results taken over; who comes second waits for the first.

        Returns
        -------
        set of WorkerState
            Who was to take them over, and has died as well.
        """
        pending = self._under_way.get(address)
        if pending is not None:
            return await asyncio.shield(pending)
        ws = self.scheduler.workers.get(address)
        dying: set[WorkerState] = set()
        batches = self._batches(ws, dying) if ws is not None else {}
        if not batches:
            return dying
        done = self._under_way[address] = asyncio.get_running_loop().create_future()
        try:
            self._send_nothing_more(ws)
            moved = self._moved.setdefault(address, [])
            while batches:
                asked = (self._ask(*batch, address) for batch in batches.items())
                answers = await asyncio.gather(*asked)
                for taken in answers:
                    moved += taken or ()
                failed = {
                    heir for heir, taken in zip(batches, answers, strict=True) if taken is None
                }
                dying |= failed
                batches = self._batches(ws, dying) if failed else {}
            self._adopted[address] = len(moved)
        finally:
            del self._under_way[address]
            done.set_result(dying)
        return dying

    def _alone_here(self, ws: WorkerState) -> list[TaskState]:
        """Return what is needed, only a worker has, and can be taken over."""
        only = {ws}
        return [
            ts
            for ts in ws.has_what
            if ws.address in self._kept.get(ts.key, ())
            and ts.who_has == only
            and (ts.waiters or ts.who_wants)
        ]

    def _batches(
        self, ws: WorkerState, dying: Set[WorkerState]
    ) -> dict[WorkerState, list[TaskState]]:
        """Return what is to be taken over, by whom: the largest first, by who has least."""
        held = {p: p.nbytes for p in self.heirs.of(ws) if p not in dying}
        batches: dict[WorkerState, list[TaskState]] = {}
        if not held or self.scheduler.status != Status.running:
            return batches
        found = self._alone_here(ws)
        for ts in sorted(found, key=lambda ts: (-ts.get_nbytes(), str(ts.key))):
            heir = min(held, key=lambda p: (held[p], p.address))
            held[heir] += ts.get_nbytes()
            batches.setdefault(heir, []).append(ts)
        return batches

    def _send_nothing_more(self, ws: WorkerState) -> None:
        # It is dead: what is sent to it now would have to be sent again.
        s = self.scheduler
        s.running.discard(ws)
        s.idle.pop(ws.address, None)
        s.idle_task_count.discard(ws)

    async def _ask(self, heir: WorkerState, batch: list[TaskState], gone: str) -> list[Key] | None:
        """Have one worker take over results; return which it could, None if it does not answer."""
        s = self.scheduler
        # What was released since it was put into the batch is not taken over.
        kept = [(ts.key, self._kept.get(ts.key, {}).get(gone)) for ts in batch]
        chunks = [(key, *where) for key, where in kept if where is not None]
        if not chunks:
            return []
        try:
            asked = s.rpc(heir.address).marsched_adopt(chunks=chunks, gone=gone)
            answer = await asyncio.wait_for(asked, _PATIENCE)
        except OSError:
            return None  # it is dying too
        except Exception as error:
            self._caught("adopt", error)
            return None
        keys: list[Key] = answer["adopted"]
        for key in keys:
            if gone in self._kept.get(key, ()):
                self._kept[key][heir.address] = self._kept[key].pop(gone)
        s.add_keys(worker=heir.address, keys=keys, stimulus_id=f"marsched-adopt-{time()}")
        return keys
