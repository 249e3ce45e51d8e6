"""`MarsWorkerPlugin`: what dask_marsched does in a worker, part by part."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any
from weakref import WeakKeyDictionary

from dask.typing import Key
from distributed import Worker
from distributed.diagnostics.plugin import WorkerPlugin

from dask_marsched.config import Settings
from dask_marsched.fallbacks.counters import Counters
from dask_marsched.host.worker import data as store
from dask_marsched.host.worker.interrupts import Interrupts
from dask_marsched.host.worker.message_batching import WorkerReleaseBatching
from dask_marsched.host.worker.transfer import HandleTransfer
from dask_marsched.policies.sharing import LEAST_SHARED
from dask_marsched.worker.admission import Admission
from dask_marsched.worker.heartbeat_metrics import Telling
from dask_marsched.worker.kernels import KernelPart

logger = logging.getLogger("dask_marsched")

NAME = "marsched"

#: Share of the memory limit up to which a worker's results are in shared memory.
_SHARED = 0.5
#: Attribute of `Settings` and option that switch each part on.
_SWITCHES = {
    "shared": ("store_shared", "marsched.store.shared"),
    "quota": ("quota_enabled", "marsched.quota.enabled"),
    "adoption": ("adopts", "marsched.failover.adopt"),
    "interrupts": ("interrupt", "marsched.cancelling.interrupt"),
    "kernels": ("kernels_enabled", "marsched.fusion.kernels"),
}
#: Those that rest on the store of ours.
_ON_STORE = frozenset({"shared", "quota", "adoption"})
#: distributed starts a plugin while the one before it is still being taken out.
_turns: WeakKeyDictionary[Worker, asyncio.Lock] = WeakKeyDictionary()


class MarsWorkerPlugin(WorkerPlugin):
    """Gives a Dask worker a store of its results, a quota of memory, and fused kernels.

    The scheduler plugin puts it on every worker; nobody has to register it.

    Parameters
    ----------
    **settings
        Attributes of `dask_marsched.config.Settings`.

    Raises
    ------
    ValueError
        If a setting is unknown or its value not accepted.
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
        self._kernels: KernelPart | None = None
        self._telling: Telling | None = None
        self._reasons = dict.fromkeys(_SWITCHES, "not started on a worker")

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (vars(self.settings),)

    async def setup(self, worker: Worker) -> None:
        """Put the parts in force that are switched on, once what goes has gone.

        A worker that is not as expected stays as it is; the reason is logged once and stands in
        `report`.
        """
        async with _turns.setdefault(worker, asyncio.Lock()):
            await self._set_up(worker)

    async def _set_up(self, worker: Worker) -> None:
        on = {part for part, (setting, _) in _SWITCHES.items() if getattr(self.settings, setting)}
        self._reasons = {
            part: f"switched off by {option}"
            for part, (_, option) in _SWITCHES.items()
            if part not in on
        }
        self._gather(worker)
        if on & _ON_STORE:
            self._keep_results(worker, on & _ON_STORE)
        if "interrupts" in on:
            self._interrupt(worker)
        if "kernels" in on:
            await self._start_kernels(worker)
        if on:
            self._telling = Telling(worker, self.report, self._transfer_failures.caught)
            self._telling.install()

    async def _start_kernels(self, worker: Worker) -> None:
        self._kernels = KernelPart(worker, self.settings)
        try:
            await self._kernels.start()
        except RuntimeError as misfit:
            self._kernels = None
            self._leave({"kernels"}, misfit)

    def _keep_results(self, worker: Worker, on: set[str]) -> None:
        # Sharing and the quota rest on the store: distributed's own mapping loses results where
        # threads evict them.
        if sys.platform != "linux":
            only = "what they rest on is there on Linux only"
            self._leave(on | {"store"}, store.NotApplicable(f"not on {sys.platform}: {only}"))
            return
        try:
            self._store = store.install(worker, compression=self.settings.store_compression)
        except (RuntimeError, OSError) as misfit:
            self._leave(on | {"store"}, misfit)
            return
        if "shared" in on:
            self._share(worker, self._store)
        if "quota" in on:
            self._set_quota(worker, self._store)

    def _gather(self, worker: Worker) -> None:
        # First: others wrap the handlers that it puts in.
        messages = WorkerReleaseBatching(worker)
        try:
            messages.install()
        except RuntimeError as misfit:
            self._leave({"messages"}, misfit)
        else:
            self._messages = messages

    def _interrupt(self, worker: Worker) -> None:
        # Last: it wraps what the quota has put in the place of the worker's functions.
        interrupts = Interrupts(worker)
        try:
            interrupts.install()
        except RuntimeError as misfit:
            self._leave({"interrupts"}, misfit)
        else:
            self._interrupts = interrupts

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
        # Not to be awaited here: the nanny answers only when its worker has started.
        self._transfer.start()

    def _set_quota(self, worker: Worker, data: store.WorkerStore) -> None:
        surplus = self._transfer.surplus if self._transfer is not None else lambda: 0
        admission = Admission(worker, data, self.settings, surplus)
        try:
            admission.install()
        except RuntimeError as misfit:
            self._leave({"quota"}, misfit)
        else:
            self._admission = admission

    async def teardown(self, worker: Worker) -> None:
        """Restore the worker, once what comes has come."""
        async with _turns.setdefault(worker, asyncio.Lock()):
            await self._tear_down(worker)

    async def _tear_down(self, worker: Worker) -> None:
        if self._telling is not None:
            self._telling.uninstall()
            self._telling = None
        self._reasons = dict.fromkeys(_SWITCHES, "removed from the worker")
        # What was put in last goes first. The transfer is put in when the nanny answers.
        around = getattr(worker.execute, "__self__", None)
        if self._transfer is not None and around is self._transfer.publisher:
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
        if self._messages is not None:
            self._messages.uninstall()
            self._messages = None

    async def _end_transfer(self) -> None:
        if self._transfer is not None:
            await self._transfer.uninstall()
            self._transfer = None

    def _leave(self, parts: set[str], misfit: Exception) -> None:
        self._reasons.update(dict.fromkeys(parts, str(misfit)))
        # How a user sets up a worker is no reason to warn that user.
        level = logging.INFO if isinstance(misfit, store.NotApplicable) else logging.WARNING
        logger.log(level, "%s", misfit)

    def interrupted(self) -> list[Key]:
        """Return the keys of what was told to end and still runs."""
        return self._interrupts.under_way() if self._interrupts is not None else []

    def report(self) -> dict[str, Any]:
        """Return the state of each part, as plain values for JSON.

        Returns
        -------
        dict
            By part, None where it is off: ``quota``, its ledger and counts; ``store``, bytes
            in each tier, and what went from one to the other; ``shared``, what is in shared
            memory, and what came by handle and by connection; ``interrupts``, executions that
            were ``interrupted`` and are ``still_running``; ``kernels``, see
            `dask_marsched.kernels.evaluator.Kernels.report`; ``messages``, ``answers`` that were
            sent along with others. All in bytes, seconds and numbers.
            ``reasons``: why a part is off, by part.
        """
        reasons = dict(self._reasons)
        if self._transfer is not None and self._transfer.reason is not None:
            reasons["shared"] = self._transfer.reason
        return {
            "quota": self._admission.report() if self._admission is not None else None,
            "store": self._store.report() if self._store is not None else None,
            "shared": self._report_of_shared(),
            "interrupts": self._interrupts.report() if self._interrupts is not None else None,
            "kernels": self._kernels.report() if self._kernels is not None else None,
            "messages": self._messages.report() if self._messages is not None else None,
            "reasons": reasons,
        }

    def _report_of_shared(self) -> dict[str, Any] | None:
        if self._transfer is None or self._transfer.reason is not None:
            return None
        return {
            **self._transfer.report(),
            "exceptions": dict(self._transfer_failures.exceptions),
            "last_exception": self._transfer_failures.last_exception,
        }


def _restore(settings: dict[str, Any]) -> MarsWorkerPlugin:
    return MarsWorkerPlugin(**settings)
