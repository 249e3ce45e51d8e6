"""Lets other workers adopt the results of a dead worker before anything is recomputed.

Results in shared memory belong to the nanny, so they outlive the worker's process. The stock
`remove_worker` releases them before any plugin is called. This module runs first: other workers of
the machine, or the process that the nanny starts next, map the results. It also keeps Dask's Active
Memory Manager from dropping the copies that can be adopted.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Set
from typing import Any

from dask.typing import Key
from distributed.core import Status
from distributed.metrics import time
from distributed.scheduler import Scheduler, TaskState, WorkerState

from dask_marsched.host.contract import demand, misfits_of_function, misfits_of_handler
from dask_marsched.host.replacements import Replacements
from dask_marsched.host.restart.process import next_run
from dask_marsched.host.scheduler import dead_workers, departed_workers
from dask_marsched.host.scheduler.adopters import Adopters
from dask_marsched.host.scheduler.dead_workers import DeadWorkers
from dask_marsched.host.scheduler.departed_workers import DepartedWorkers

#: Seconds that a worker has to map results; mapping takes milliseconds.
_ADOPTION_TIMEOUT = 5.0
_UNREGISTER = "unregister"


def misfits(scheduler: Any) -> list[str]:
    """Return what adoption does not find as expected in a scheduler; empty if all is well."""
    return [
        *misfits_of_handler(scheduler, "handlers", _UNREGISTER, "remove_worker"),
        *misfits_of_function(
            "Scheduler", type(scheduler), "remove_worker", ("address", "stimulus_id")
        ),
        *departed_workers.misfits(scheduler),
        *dead_workers.misfits(scheduler),
    ]


def _memory_manager(scheduler: Any) -> Any:
    """Return the Active Memory Manager, None if it is off or chooses replicas in another way."""
    manager = scheduler.extensions.get("amm")
    dropper = getattr(manager, "_find_dropper", None)
    there = [] if dropper is None else list(inspect.signature(dropper).parameters)
    return manager if there == ["ts", "candidates", "pending_drop"] else None


class Adoption:
    """Has workers of the same machine adopt a dead worker's results within ``patience`` seconds."""

    def __init__(
        self,
        scheduler: Scheduler,
        caught: Callable[[str, Exception], None],
        patience: float = 0.0,
    ) -> None:
        self.scheduler: Any = scheduler
        self.adopters = Adopters(scheduler)
        self.dead = DeadWorkers(scheduler)
        self._patience = patience
        self._caught = caught
        # Handle and stamp by worker: several machines may hold a copy.
        self._kept: dict[Key, dict[str, tuple[Any, int]]] = {}
        self._under_way: dict[str, asyncio.Future[Set[WorkerState]]] = {}
        self.departed = DepartedWorkers(scheduler, caught, self._under_way)
        self._moved: dict[str, list[Key]] = {}
        #: The workers on which tasks run a second time: they keep the inputs.
        self.second_workers: Callable[[Iterable[TaskState]], Set[WorkerState]] = lambda _: set()
        self._manager: Any = None
        self._undo = Replacements()

    def install(self) -> None:
        """Wrap `remove_worker` and its handler, or raise a RuntimeError and change nothing."""
        s, undo = self.scheduler, self._undo
        demand(misfits(s), "results of dead workers are not adopted")
        undo.attribute(s, "remove_worker", self._remove_worker)
        undo.entry(s.handlers, _UNREGISTER, self._remove_worker)
        self._manager = _memory_manager(s)
        if self._manager is not None:
            undo.attribute(self._manager, "_find_dropper", self._find_dropper)
        self.departed.install()
        self.dead.install()

    def uninstall(self) -> None:
        """Restore the scheduler. Idempotent."""
        self._undo.close()
        self.departed.uninstall()
        self.dead.uninstall()
        self.adopters.clear()
        self._kept.clear()

    def announced(self, worker: str, key: Key, handle: Any, stamp: int) -> None:
        """Record where a worker keeps a result."""
        s = self.scheduler
        # An announcement may arrive after the task was forgotten; it would never be removed.
        if key in s.tasks and worker in s.workers:
            self._kept.setdefault(key, {})[worker] = (handle, stamp)

    def forget(self, key: Key) -> None:
        """Drop the record of a released result."""
        self._kept.pop(key, None)

    def kept(self) -> set[Key]:
        """Return the keys of the results that outlive their worker's process."""
        tasks = self.scheduler.tasks
        return {key for key in self._kept if key in tasks and self.keepers(tasks[key])}

    def keepers(self, ts: TaskState) -> list[WorkerState]:
        """Return the workers whose copy of a result outlives their process."""
        found = map(self.scheduler.workers.get, self._kept.get(ts.key, ()))
        return [ws for ws in found if ws is not None and ws in (ts.who_has or ())]

    def adopted(self, worker: str) -> int:
        """Return how many results of a worker that is being removed were adopted."""
        return len(self._moved.get(worker, ()))

    def _find_dropper(self, ts: TaskState, candidates: Any, pending_drop: Any) -> Any:
        # A retiring worker names itself as the candidate; it may drop whatever others hold.
        if candidates is None:
            # the copies of a retiring worker, or of a dead one, may go with it
            staying = [ws for ws in self.keepers(ts) if ws in self.scheduler.running]
            kept = {*staying[:1], *self.second_workers(ts.waiters or ())}
            if kept:
                candidates = (ts.who_has or set()) - kept
        return type(self._manager)._find_dropper(self._manager, ts, candidates, pending_drop)

    async def _remove_worker(self, address: str, *, stimulus_id: str, **kwargs: Any) -> Any:
        s = self.scheduler
        address = s.coerce_address(address)
        self.dead.removing(address)
        if address in self.departed:
            return "OK"  # the nanny waits for this answer before it starts another process
        dying: Set[WorkerState] = set()
        if s.workers.get(address) is not None:
            try:
                dying = await self._once(address)
            except Exception as error:
                self._caught("adopt", error)
        ws = s.workers.get(address)
        if ws is None or kwargs.get("expected") or not self._needs_an_adopter(ws, dying):
            return await self._remove(address, stimulus_id, kwargs)
        if address not in self.departed:
            self.departed.hold(
                ws,
                stimulus_id,
                self._wait_for_adopters(ws),
                lambda: self._remove(address, stimulus_id, kwargs),
            )
        return "OK"

    def _needs_an_adopter(self, ws: WorkerState, dying: Set[WorkerState]) -> bool:
        """Return whether waiting for another adopter can save results."""
        return bool(
            self._patience
            and self.scheduler.status == Status.running
            and ws.status in (Status.running, Status.paused)
            and dying >= set(self.adopters.of(ws))
            and self._sole_copies(ws)
        )

    async def _wait_for_adopters(self, ws: WorkerState) -> None:
        until = time() + self._patience
        while (seconds := until - time()) > 0:
            came = await self.adopters.wait(ws, seconds)
            # An adopter that dies too leaves the results to the next one.
            if not await self._once(ws.address) or not came:
                return

    async def _remove(self, address: str, stimulus_id: str, kwargs: dict[str, Any]) -> Any:
        """Call the stock removal; the results that could be adopted have other holders by now."""
        s = self.scheduler
        for key in [key for key, where in self._kept.items() if where.pop(address, None)]:
            if not self._kept[key]:
                del self._kept[key]
        answer = await type(s).remove_worker(s, address, stimulus_id=stimulus_id, **kwargs)
        self.adopters.gone(address)
        try:
            self._redirect(self._moved.pop(address, []), stimulus_id)
        except Exception as error:
            self._caught("adopt", error)
        return answer

    def _redirect(self, keys: list[Key], stimulus_id: str) -> None:
        """Tell the workers that wait for adopted results who holds them now.

        Stock Dask sends the readers again. Here they stay with their workers, which would otherwise
        ask for missing holders only once a second.
        """
        s = self.scheduler
        waiting: dict[str, dict[Key, list[str]]] = {}
        for ts in filter(None, map(s.tasks.get, keys)):
            there = [ws.address for ws in ts.who_has or ()]
            for address in {
                dts.processing_on.address for dts in ts.waiters or () if dts.processing_on
            }:
                waiting.setdefault(address, {})[ts.key] = there
        for address, who_has in waiting.items():
            message = {"op": "refresh-who-has", "who_has": who_has, "stimulus_id": stimulus_id}
            s.worker_send(address, message)

    async def _once(self, address: str) -> Set[WorkerState]:
        """Have a worker's results adopted; concurrent calls wait for the first one.

        Returns the adopters that did not answer: they are dying as well.
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
            self._stop_sending_to(ws)
            moved = self._moved.setdefault(address, [])
            while batches:
                asked = (self._ask(*batch, address) for batch in batches.items())
                answers = await asyncio.gather(*asked)
                for taken in answers:
                    moved += taken or ()
                answered = zip(batches, answers, strict=True)
                failed = {adopter for adopter, taken in answered if taken is None}
                dying |= failed
                batches = self._batches(ws, dying) if failed else {}
        finally:
            del self._under_way[address]
            done.set_result(dying)
        return dying

    def _sole_copies(self, ws: WorkerState) -> list[TaskState]:
        """Return the adoptable results that are needed and that only this worker holds."""
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
        """Assign each result to an adopter: the largest result first, to whoever holds least."""
        held = {p: p.nbytes for p in self.adopters.of(ws) if p not in dying}
        batches: dict[WorkerState, list[TaskState]] = {}
        if not held or self.scheduler.status != Status.running:
            return batches
        found = self._sole_copies(ws)
        for ts in sorted(found, key=lambda ts: (-ts.get_nbytes(), str(ts.key))):
            adopter = min(held, key=lambda p: (held[p], p.address))
            held[adopter] += ts.get_nbytes()
            batches.setdefault(adopter, []).append(ts)
        return batches

    def _stop_sending_to(self, ws: WorkerState) -> None:
        s = self.scheduler
        s.running.discard(ws)
        s.idle.pop(ws.address, None)
        s.idle_task_count.discard(ws)

    async def _ask(
        self, adopter: WorkerState, batch: list[TaskState], gone: str
    ) -> list[Key] | None:
        """Ask a worker to adopt results; return the adopted keys, None if it does not answer."""
        s = self.scheduler
        # Results that were released since the batch was made are skipped.
        kept = [(ts.key, self._kept.get(ts.key, {}).get(gone)) for ts in batch]
        chunks = [(key, *where) for key, where in kept if where is not None]
        if not chunks:
            return []
        try:
            asked = s.rpc(adopter.address).marsched_adopt(chunks=chunks, gone=gone)
            answer = await asyncio.wait_for(asked, _ADOPTION_TIMEOUT)
        except (asyncio.TimeoutError, OSError):
            return None
        except Exception as error:
            self._caught("adopt", error)
            return None
        if s.workers.get(adopter.address) is not adopter:
            return None
        # A key that was released meanwhile may be another task's now.
        mapped = set(answer["adopted"])
        there = (ts for ts in batch if s.tasks.get(ts.key) is ts and ts.state == "memory")
        keys = [ts.key for ts in there if ts.key in mapped]
        for key in keys:
            if gone in self._kept.get(key, ()):
                self._kept[key][adopter.address] = self._kept[key].pop(gone)
        accepted = {"keys": keys, "offer": answer["offer"], "run_id": next_run(), "gone": gone}
        s.worker_send(adopter.address, {"op": "marsched_adopted", **accepted})
        s.add_keys(worker=adopter.address, keys=keys, stimulus_id=f"marsched-adopt-{time()}")
        return keys
