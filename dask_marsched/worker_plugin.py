"""Installs the parts of dask_marsched on a worker: `MarsWorkerPlugin`."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sys
from collections.abc import Callable
from functools import partial
from inspect import isawaitable
from operator import methodcaller
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from dask.typing import Key
from distributed import Worker
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.protocol.compression import compressions
from distributed.worker_state_machine import ExecuteSuccessEvent

from dask_marsched.config import WORKER_PARTS, Settings
from dask_marsched.fallbacks.counters import Counters
from dask_marsched.host.contract import NotApplicable
from dask_marsched.host.worker.deferred_messages import MessageDeferral
from dask_marsched.host.worker.interrupts import Interrupts
from dask_marsched.host.worker.task_runs import TaskRuns
from dask_marsched.policies.sharing import LEAST_SHARED
from dask_marsched.worker.heartbeat_metrics import HeartbeatMetrics

if TYPE_CHECKING:
    from dask_marsched.host.worker.data import WorkerStore
    from dask_marsched.host.worker.transfer import HandleTransfer

logger = logging.getLogger("dask_marsched")

NAME = "marsched"

#: Largest share of the memory limit that results in shared memory may take.
_SHARED = 0.5
#: Parts that need our store: distributed's own mapping loses results that threads evict.
_ON_STORE = frozenset({"shared", "quota", "adoption"})
#: Parts with figures for `report`.
_REPORTED = (
    "quota",
    "store",
    "shared",
    "interrupts",
    "kernels",
    "messages",
    "runs",
    "reconnection",
)
#: distributed may set up a plugin while the teardown of the previous one is still running.
_locks: WeakKeyDictionary[Worker, asyncio.Lock] = WeakKeyDictionary()


class MarsWorkerPlugin(WorkerPlugin):
    """Gives a Dask worker a store of results, a memory quota, fused kernels and interrupts.

    The scheduler plugin installs it on every worker; users need not register it.

    Parameters
    ----------
    **settings
        Attributes of `dask_marsched.config.Settings`.

    Raises
    ------
    ValueError
        A setting is unknown or its value not accepted.
    """

    name = NAME

    def __init__(self, **settings: Any) -> None:
        self.settings = Settings().replace(**settings)
        #: The installed parts by name: some of `_REPORTED`, and ``heartbeat``.
        self._parts: dict[str, Any] = {}
        self._failures = {"messages": Counters(), "shared": Counters(), "runs": Counters()}
        self._reasons = dict.fromkeys(WORKER_PARTS, "not started on a worker")

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(MarsWorkerPlugin, **vars(self.settings)), ()

    async def setup(self, worker: Worker) -> None:
        """Install the parts that are switched on, after any teardown under way.

        A part whose contract checks fail is left out, all parts if anything else goes wrong. The
        reason is logged once and is part of `report`.
        """
        async with _locks.setdefault(worker, asyncio.Lock()):
            try:
                await self._set_up(worker)
            except Exception as error:
                await self._tear_down(worker)
                reason = f"the set-up failed on the worker: {error!r}"
                self._reasons = dict.fromkeys(WORKER_PARTS, reason)
                logger.exception("dask_marsched is off on %s", worker.address)

    async def _set_up(self, worker: Worker) -> None:
        on = {
            part for part, (setting, _) in WORKER_PARTS.items() if getattr(self.settings, setting)
        }
        self._reasons = {
            part: f"switched off by {option}"
            for part, (_, option) in WORKER_PARTS.items()
            if part not in on
        }
        is_stock = getattr(worker.execute, "__func__", None) is Worker.execute
        # First: others wrap the handlers that it installs.
        self._install("messages", MessageDeferral(worker))
        if self.settings.journal_directory is not None:
            from dask_marsched.host.worker.reconnection import Reconnection

            patience = self.settings.journal_patience
            reconnection = Reconnection(worker, patience, self._announce_again, self._is_outdated)
            self._install("reconnection", reconnection)
        if on & _ON_STORE:
            self._install_store(worker, on & _ON_STORE)
        if "interrupts" in on:
            # After the quota, whose replacements it wraps.
            self._install("interrupts", Interrupts(worker))
        if "kernels" in on:
            await self._start_kernels(worker)
        if (admission := self._parts.get("quota")) is not None and not is_stock:
            # Runs would not call it.
            self._leave_out({"runs"}, NotApplicable("the worker has an `execute` of its own"))
        elif admission is not None:
            # Last: it wraps the state machine's class as the quota left it.
            interrupts, caught = self._parts.get("interrupts"), self._failures["runs"].caught
            runs = TaskRuns(worker, interrupts, admission.has_half_free, self._retain, caught)
            self._install("runs", runs)
        if on:
            # Under "messages", which no setting switches off.
            caught = self._failures["messages"].caught
            self._install("heartbeat", HeartbeatMetrics(worker, self.report, caught))

    def _install(self, name: str, part: Any) -> None:
        """Install a part, unless its contract checks fail."""
        try:
            part.install()
        except RuntimeError as misfit:
            self._leave_out({name}, misfit)
        else:
            self._parts[name] = part

    def _announce_again(self) -> None:
        if "shared" in self._parts:
            try:
                self._parts["shared"].announce_again()
            except Exception as error:
                self._failures["shared"].caught("announce_again", error)

    def _is_outdated(self, name: str, pickled: bytes) -> bool:
        """Whether this is the scheduler's plugin of this kind, and has other settings."""
        if name != self.name:
            return False
        plugin = pickle.loads(pickled)
        return isinstance(plugin, MarsWorkerPlugin) and plugin.settings != self.settings

    def _retain(self, event: ExecuteSuccessEvent) -> None:
        transfer = self._parts.get("shared")
        if transfer is not None and transfer.publisher is not None:
            transfer.publisher.ran(event)

    async def _start_kernels(self, worker: Worker) -> None:
        from dask_marsched.worker.kernels import WorkerKernels

        kernels = self._parts["kernels"] = WorkerKernels(worker, self.settings)
        try:
            await kernels.start()
        except RuntimeError as misfit:
            del self._parts["kernels"]
            self._leave_out({"kernels"}, misfit)

    def _install_store(self, worker: Worker, on: set[str]) -> None:
        """Install the store, and those parts in `on` that need it."""
        try:
            if sys.platform != "linux":
                raise NotApplicable(f"not on {sys.platform}: the store needs Linux")
            # Elsewhere it cannot even be imported.
            from dask_marsched.host.worker.data import install

            data = install(worker, compression=self._compression())
        except (RuntimeError, OSError) as misfit:
            self._leave_out(on | {"store"}, misfit)
            return
        self._parts["store"] = data
        surplus = self._share(worker, data).surplus if "shared" in on else lambda: 0
        if "quota" in on:
            from dask_marsched.worker.admission import Admission

            self._install("quota", Admission(worker, data, self.settings, surplus))

    def _compression(self) -> str | None:
        """Return the compression of spilled results, none if it is not installed here."""
        name = self.settings.store_compression
        if name in compressions:
            return name
        self._leave_out({"compression"}, RuntimeError(f"{name} is not installed on the worker"))
        return None

    def _share(self, worker: Worker, data: WorkerStore) -> HandleTransfer:
        from dask_marsched.host.worker.transfer import HandleTransfer

        transfer = self._parts["shared"] = HandleTransfer(
            worker,
            data,
            cap=int(_SHARED * (worker.memory_manager.memory_limit or 0)),
            least=LEAST_SHARED,
            caught=self._failures["shared"].caught,
            announces=self.settings.adopts,
            keep=self.settings.adopts and self.settings.adopt == "all",
        )
        # Not awaited: the nanny answers only when its worker has started.
        transfer.start()
        return transfer

    async def teardown(self, worker: Worker) -> None:
        """Restore the worker, after any setup under way."""
        async with _locks.setdefault(worker, asyncio.Lock()):
            await self._tear_down(worker)

    async def _tear_down(self, worker: Worker) -> None:
        await self._remove("heartbeat")
        self._reasons = dict.fromkeys(WORKER_PARTS, "removed from the worker")
        await self._remove("runs")
        # In reverse order of installation. The transfer was installed when the nanny answered, that
        # is before or after the kernels.
        outermost = getattr(worker.execute, "__self__", None)
        if "shared" in self._parts and outermost is self._parts["shared"].publisher:
            await self._remove("shared")
        await self._remove("kernels", methodcaller("stop"))
        for name in ("shared", "interrupts", "quota"):
            await self._remove(name)
        if "store" in self._parts:
            from dask_marsched.host.worker.data import uninstall

            await self._remove("store", partial(uninstall, worker))
        for name in ("reconnection", "messages"):
            await self._remove(name)

    async def _remove(
        self, name: str, uninstall: Callable[[Any], Any] = methodcaller("uninstall")
    ) -> None:
        if name in self._parts:
            done = uninstall(self._parts[name])
            if isawaitable(done):
                await done
            del self._parts[name]

    def _leave_out(self, parts: set[str], misfit: Exception) -> None:
        self._reasons.update(dict.fromkeys(parts, str(misfit)))
        # Consequences of how the user configured the worker deserve no warning.
        level = logging.INFO if isinstance(misfit, NotApplicable) else logging.WARNING
        logger.log(level, "%s", misfit)

    def interrupted(self) -> list[Key]:
        """Return the keys of the tasks that were interrupted and still run."""
        interrupts: Interrupts | None = self._parts.get("interrupts")
        return interrupts.under_way() if interrupts is not None else []

    def report(self) -> dict[str, Any]:
        """Return the state of each part, as plain values for JSON.

        Returns
        -------
        dict
            By part, None where it is off: ``quota``, the ledger in bytes (``limit``, ``used``,
            ``promised``, ``queued``) and counts (``evictions``, ``deferrals``, ``forced``);
            ``store``, bytes in ``memory``, ``spilled`` (their size in memory) and on ``disk``;
            ``shared``, bytes ``published`` for other workers, ``mapped`` from them, received as
            handles (``bytes_by_handle``) and by connection (``bytes_by_comm``), results
            ``made_here`` without a copy; ``interrupts``, executions ``interrupted`` and
            ``still_running``; ``kernels``, see `dask_marsched.kernels.evaluator.Kernels.report`;
            ``messages``, ``answers`` sent together with others; ``runs`` of tiny tasks in a row,
            and the ``tasks`` in them. ``reasons``: why a part is off.
        """
        reasons = dict(self._reasons)
        found: dict[str, Any] = dict.fromkeys(_REPORTED)
        for name in self._parts.keys() & found.keys():
            part = self._parts[name]
            if name == "shared" and part.reason is not None:
                reasons[name] = part.reason
            else:
                found[name] = part.report()
        for name, failures in self._failures.items():
            if found[name] is not None:
                found[name] = {**found[name], **failures.failures()}
        return {**found, "reasons": reasons}
