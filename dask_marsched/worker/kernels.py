"""Starts and stops fused kernels on a worker."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import Any

from distributed import Worker

from dask_marsched.config import Settings
from dask_marsched.host.kernels.execution import KernelExecution
from dask_marsched.kernels import backends, cache_files
from dask_marsched.kernels.evaluator import Kernels, Means

#: An expression is compiled, in about 0.1 s, once NumPy has spent this many seconds on it.
PATIENCE = 0.1


class WorkerKernels:
    """Evaluates a worker's fused tasks with compiled kernels."""

    def __init__(self, worker: Worker, settings: Settings) -> None:
        self._worker = worker
        self._settings = settings
        self._kernels: Kernels | None = None
        self._execution: KernelExecution | None = None
        self._missing: dict[str, str] = {}

    async def start(self) -> None:
        """Evaluate tasks with kernels from now on. Backends are imported on first use.

        Raises RuntimeError, with nothing changed, if the worker fails the contract checks.
        """
        for name, package in backends.PACKAGES.items():
            if importlib.util.find_spec(package) is None:
                self._missing[name] = f"ModuleNotFoundError: No module named {package!r}"
        exact = self._settings.kernels_exact
        kernels = Kernels(self._means, patience=PATIENCE, exact=exact)
        execution = KernelExecution(self._worker, kernels, kernels.failures.caught)
        try:
            execution.install()
        except RuntimeError:
            kernels.close()
            raise
        self._kernels, self._execution = kernels, execution

    def _means(self) -> Means:
        settings = self._settings
        directory = backends.cache_directory(settings.kernels_cache)
        found, missing = backends.make(directory)
        self._missing.update(missing)
        if directory is not None:
            cache_files.prune(directory)
        elif settings.kernels_cache is not None:
            self._missing["cache"] = "no directory for it that only this user may write to"
        return Means(found, directory, backends.identity())

    async def stop(self) -> None:
        """Restore the worker. Idempotent."""
        if self._execution is not None:
            self._execution.uninstall()
        if self._kernels is not None:
            # waits for the compilation under way
            await asyncio.to_thread(self._kernels.close)

    def report(self) -> dict[str, Any] | None:
        """Return `Kernels.report` and the reasons why backends or the cache are ``missing``."""
        if self._kernels is None:
            return None
        return {**self._kernels.report(), "missing": dict(self._missing)}
