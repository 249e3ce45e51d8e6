"""Installs the parts of dask_marsched on a worker: `MarsWorkerPlugin`."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from dask.typing import Key
from distributed import Worker
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.worker_state_machine import ExecuteSuccessEvent

from dask_marsched.config import WORKER_PARTS, Settings
from dask_marsched.fallbacks.counters import Counters
from dask_marsched.host.worker import data as store
from dask_marsched.host.worker.interrupts import Interrupts
from dask_marsched.host.worker.message_batching import WorkerReleaseBatching
from dask_marsched.host.worker.task_runs import TaskRuns
from dask_marsched.host.worker.transfer import HandleTransfer
from dask_marsched.policies.sharing import LEAST_SHARED
from dask_marsched.worker.admission import Admission
from dask_marsched.worker.heartbeat_metrics import HeartbeatMetrics

if TYPE_CHECKING:
    from dask_marsched.host.worker.reconnection import Reconnection
    from dask_marsched.worker.kernels import WorkerKernels

logger = logging.getLogger("dask_marsched")

NAME = "marsched"

#: Largest share of the memory limit that results in shared memory may take.
_SHARED = 0.5
#: Parts that need our store: distributed's own mapping loses results that threads evict.
_ON_STORE = frozenset({"shared", "quota", "adoption"})
#: distributed may set up a plugin while the teardown of the previous one is still running.
_locks: WeakKeyDictionary[Worker, asyncio.Lock] = WeakKeyDictionary()


class _Part(Protocol):
    def install(self) -> None: ...


_P = TypeVar("_P", bound=_Part)


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
        self._admission: Admission | None = None
        self._store: store.WorkerStore | None = None
        self._transfer: HandleTransfer | None = None
        self._transfer_failures = Counters()
        self._interrupts: Interrupts | None = None
        self._messages: WorkerReleaseBatching | None = None
        self._reconnection: Reconnection | None = None
        self._kernels: WorkerKernels | None = None
        self._runs: TaskRuns | None = None
        self._run_failures = Counters()
        self._heartbeat: HeartbeatMetrics | None = None
        self._reasons = dict.fromkeys(WORKER_PARTS, "not started on a worker")

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(MarsWorkerPlugin, **vars(self.settings)), ()

    async def setup(self, worker: Worker) -> None:
        """Install the parts that are switched on, after any teardown under way.

        A part whose contract checks fail is left out; the reason is logged once and is part of
        `report`.
        """
        async with _locks.setdefault(worker, asyncio.Lock()):
            await self._set_up(worker)

    async def _set_up(self, worker: Worker) -> None:
        on = {
            part for part, (setting, _) in WORKER_PARTS.items() if getattr(self.settings, setting)
        }
        self._reasons = {
            part: f"switched off by {option}"
            for part, (_, option) in WORKER_PARTS.items()
            if part not in on
        }
        # First: others wrap the handlers that it installs.
        self._messages = self._installed(WorkerReleaseBatching(worker), "messages")
        if self.settings.journal_directory is not None:
            from dask_marsched.host.worker.reconnection import Reconnection

            reconnection = Reconnection(
                worker, self.settings.journal_patience, self._announce_again, self._is_outdated
            )
            self._reconnection = self._installed(reconnection, "reconnection")
        if on & _ON_STORE:
            self._install_store(worker, on & _ON_STORE)
        if "interrupts" in on:
            # After the quota, whose replacements it wraps.
            self._interrupts = self._installed(Interrupts(worker), "interrupts")
        if "kernels" in on:
            await self._start_kernels(worker)
        if self._admission is not None:
            # Last: it wraps the state machine's class as the quota left it.
            self._runs = self._installed(
                TaskRuns(
                    worker,
                    self._interrupts,
                    self._admission.has_half_free,
                    self._retain,
                    self._run_failures.caught,
                ),
                "runs",
            )
        if on:
            self._heartbeat = HeartbeatMetrics(worker, self.report, self._transfer_failures.caught)
            self._heartbeat.install()

    def _installed(self, part: _P, name: str) -> _P | None:
        """Install a part; return it, or None if its contract checks fail."""
        try:
            part.install()
        except RuntimeError as misfit:
            self._leave_out({name}, misfit)
            return None
        return part

    def _announce_again(self) -> None:
        if self._transfer is not None:
            try:
                self._transfer.announce_again()
            except Exception as error:
                self._transfer_failures.caught("announce_again", error)

    def _is_outdated(self, name: str, pickled: bytes) -> bool:
        """Whether this is the scheduler's plugin of this kind, and has other settings."""
        if name != self.name:
            return False
        plugin = pickle.loads(pickled)
        return isinstance(plugin, MarsWorkerPlugin) and plugin.settings != self.settings

    def _retain(self, event: ExecuteSuccessEvent) -> None:
        if self._transfer is not None and self._transfer.publisher is not None:
            self._transfer.publisher.ran(event)

    async def _start_kernels(self, worker: Worker) -> None:
        from dask_marsched.worker.kernels import WorkerKernels

        self._kernels = WorkerKernels(worker, self.settings)
        try:
            await self._kernels.start()
        except RuntimeError as misfit:
            self._kernels = None
            self._leave_out({"kernels"}, misfit)

    def _install_store(self, worker: Worker, on: set[str]) -> None:
        """Install the store, and those parts in `on` that need it."""
        try:
            if sys.platform != "linux":
                raise store.NotApplicable(f"not on {sys.platform}: the store needs Linux")
            self._store = store.install(worker, compression=self.settings.store_compression)
        except (RuntimeError, OSError) as misfit:
            self._leave_out(on | {"store"}, misfit)
            return
        if "shared" in on:
            self._share(worker, self._store)
        if "quota" in on:
            surplus = self._transfer.surplus if self._transfer is not None else lambda: 0
            admission = Admission(worker, self._store, self.settings, surplus)
            self._admission = self._installed(admission, "quota")

    def _share(self, worker: Worker, data: store.WorkerStore) -> None:
        self._transfer = HandleTransfer(
            worker,
            data,
            cap=int(_SHARED * (worker.memory_manager.memory_limit or 0)),
            least=LEAST_SHARED,
            caught=self._transfer_failures.caught,
            announces=self.settings.adopts,
            keep=self.settings.adopts and self.settings.adopt == "all",
        )
        # Not awaited: the nanny answers only when its worker has started.
        self._transfer.start()

    async def teardown(self, worker: Worker) -> None:
        """Restore the worker, after any setup under way."""
        async with _locks.setdefault(worker, asyncio.Lock()):
            await self._tear_down(worker)

    async def _tear_down(self, worker: Worker) -> None:
        if self._heartbeat is not None:
            self._heartbeat.uninstall()
            self._heartbeat = None
        self._reasons = dict.fromkeys(WORKER_PARTS, "removed from the worker")
        if self._runs is not None:
            await self._runs.uninstall()
            self._runs = None
        # In reverse order of installation. The transfer was installed when the nanny answered, that
        # is before or after the kernels.
        outermost = getattr(worker.execute, "__self__", None)
        if self._transfer is not None and outermost is self._transfer.publisher:
            await self._end_transfer()
        if self._kernels is not None:
            await self._kernels.stop()
            self._kernels = None
        await self._end_transfer()
        if self._interrupts is not None:
            self._interrupts.uninstall()
            self._interrupts = None
        if self._admission is not None:
            await self._admission.uninstall()
            self._admission = None
        if self._store is not None:
            store.uninstall(worker, self._store)
            self._store = None
        if self._reconnection is not None:
            self._reconnection.uninstall()
            self._reconnection = None
        if self._messages is not None:
            self._messages.uninstall()
            self._messages = None

    async def _end_transfer(self) -> None:
        if self._transfer is not None:
            await self._transfer.uninstall()
            self._transfer = None

    def _leave_out(self, parts: set[str], misfit: Exception) -> None:
        self._reasons.update(dict.fromkeys(parts, str(misfit)))
        # Consequences of how the user configured the worker deserve no warning.
        level = logging.INFO if isinstance(misfit, store.NotApplicable) else logging.WARNING
        logger.log(level, "%s", misfit)

    def interrupted(self) -> list[Key]:
        """Return the keys of the tasks that were interrupted and still run."""
        return self._interrupts.under_way() if self._interrupts is not None else []

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
        if self._transfer is not None and self._transfer.reason is not None:
            reasons["shared"] = self._transfer.reason
        return {
            "quota": _report(self._admission),
            "store": _report(self._store),
            "shared": self._report_of_shared(),
            "interrupts": _report(self._interrupts),
            "kernels": _report(self._kernels),
            "messages": _report(self._messages),
            "runs": self._report_of_runs(),
            "reconnection": _report(self._reconnection),
            "reasons": reasons,
        }

    def _report_of_runs(self) -> dict[str, Any] | None:
        if self._runs is None:
            return None
        return {**self._runs.report(), **self._run_failures.failures()}

    def _report_of_shared(self) -> dict[str, Any] | None:
        if self._transfer is None or self._transfer.reason is not None:
            return None
        return {**self._transfer.report(), **self._transfer_failures.failures()}


def _report(part: Any) -> Any:
    return None if part is None else part.report()
