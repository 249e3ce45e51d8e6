"""`MarsWorkerPlugin`: what dask_marsched does in a worker, part by part."""

from __future__ import annotations

import logging
from typing import Any

from distributed import Worker
from distributed.diagnostics.plugin import WorkerPlugin

from dask_marsched.admission import Admission
from dask_marsched.config import Settings
from dask_marsched.host import store

logger = logging.getLogger("dask_marsched")

NAME = "marsched"


class MarsWorkerPlugin(WorkerPlugin):
    """Gives a Dask worker a quota of memory, and a store of its results.

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
        self._store: store.Store | None = None
        self._reasons = dict.fromkeys(("store", "quota"), "not started on a worker")

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (vars(self.settings),)

    async def setup(self, worker: Worker) -> None:
        """Put the parts in force that are switched on.

        A worker that is not as expected stays as it is; the reason is logged once and stands in
        `report`.
        """
        # The store first: the quota adapts the mapping that it finds. What shares the store with
        # other processes of the host starts here too, between the two.
        self._reasons = {}
        if self._is_on("store"):
            try:
                self._store = store.install(worker)
            except (RuntimeError, OSError) as misfit:
                self._leave("store", misfit)
        if self._is_on("quota"):
            admission = Admission(worker, self.settings)
            try:
                admission.install()
            except RuntimeError as misfit:
                self._leave("quota", misfit)
            else:
                self._admission = admission

    async def teardown(self, worker: Worker) -> None:
        """Restore the worker."""
        self._reasons = dict.fromkeys(("store", "quota"), "removed from the worker")
        if self._admission is not None:
            await self._admission.uninstall()
            self._admission = None
        if self._store is not None:
            store.uninstall(worker, self._store)
            self._store = None

    def _is_on(self, part: str) -> bool:
        on: bool = getattr(self.settings, f"{part}_enabled")
        if not on:
            self._reasons[part] = f"switched off by marsched.{part}.enabled"
        return on

    def _leave(self, part: str, misfit: Exception) -> None:
        self._reasons[part] = str(misfit)
        logger.warning("%s", misfit)

    def report(self) -> dict[str, Any]:
        """Return the state of each part, as plain values for JSON.

        Returns
        -------
        dict
            ``quota``: None where it is off, else its ledger and counts (bytes, numbers);
            ``store``: whether it is on; ``reasons``: why a part is off, by part.
        """
        quota = self._admission.report() if self._admission is not None else None
        return {"quota": quota, "store": self._store is not None, "reasons": dict(self._reasons)}


def _restore(settings: dict[str, Any]) -> MarsWorkerPlugin:
    return MarsWorkerPlugin(**settings)
