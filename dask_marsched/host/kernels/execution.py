"""Makes a running `distributed.Worker` execute its tasks by kernels, and restores it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distributed import Worker

from dask_marsched.host.contract import demand, misfits_of_attributes, misfits_of_function
from dask_marsched.host.replacements import Replacements
from dask_marsched.host.worker.input_release import runs_in_thread
from dask_marsched.kernels.evaluator import Kernels

if TYPE_CHECKING:
    from dask_marsched.host.kernels.task_runner import KernelRunner


class KernelExecution:
    """Replaces a worker's ``execute``.

    While a task runs, its ``run_spec`` is a wrapper that calls the runner.
    """

    def __init__(
        self, worker: Worker, kernels: Kernels, caught: Callable[[str, Exception], None]
    ) -> None:
        self._worker: Any = worker
        self._kernels = kernels
        self._caught = caught
        self._runner: KernelRunner | None = None
        self._unreadable = False
        self._undo = Replacements()

    def install(self) -> None:
        """Replace ``execute``, or raise a RuntimeError if distributed is not as expected."""
        demand(misfits(self._worker), "tasks are not run by kernels")
        self._stock = self._undo.attribute(self._worker, "execute", self._execute)

    def uninstall(self) -> None:
        """Restore the worker; running tasks end as they began. Idempotent."""
        self._undo.close()

    async def _execute(self, key: Any, *, stimulus_id: str, **more: Any) -> Any:
        stock, ts = self._stock, self._worker.state.tasks.get(key)
        task = None if ts is None else ts.run_spec
        wrapped = self._wrap(task) if ts and runs_in_thread(self._worker, ts) else task
        if wrapped is task:
            return await stock(key, stimulus_id=stimulus_id, **more)
        ts.run_spec = wrapped
        try:
            return await stock(key, stimulus_id=stimulus_id, **more)
        finally:
            if ts.run_spec is wrapped:
                ts.run_spec = task

    def _wrap(self, task: Any) -> Any:
        # `task_runner` imports dask.array, which takes a second or more. A task of arrays has
        # imported it before it arrives here, so until then there is none to run by kernels.
        if self._runner is None:
            if self._unreadable or "dask.array" not in sys.modules:
                return task
            try:
                from dask_marsched.host.kernels.task_runner import KernelRunner
            except ImportError as error:
                self._unreadable = True
                self._caught("kernel.import", error)
                return task
            self._runner = KernelRunner(self._kernels, self._caught)
        return self._runner.wrap(task)


def misfits(worker: Any) -> list[str]:
    """Return the ways in which a worker is not as expected."""
    return [
        *misfits_of_attributes("worker", worker, ["executors"]),
        *misfits_of_attributes("worker.state", getattr(worker, "state", None), ["tasks"]),
        *misfits_of_function("worker", worker, "execute", ["key", "stimulus_id"]),
    ]
