"""A worker's tasks, run by kernels: what distributed calls instead of the task."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from dask._task_spec import Task, _execute_subgraph

from dask_marsched.fusion.kernels import LEAST, Kernels
from dask_marsched.host.kernel_programs import Program
from dask_marsched.host.kernel_rules import reduction, unwrapped
from dask_marsched.host.kernel_structure import Step, TooDeepError, read

#: Structures that are remembered; there are a few in each graph.
_MOST_PROGRAMS = 2048


class KernelRunner:
    """Runs tasks by kernels where that gains anything.

    Parameters
    ----------
    kernels
        Evaluates expressions.
    caught
        Is told the place and the exception of what failed here; Dask runs the task then.
    """

    def __init__(self, kernels: Kernels, caught: Callable[[str, Exception], None]) -> None:
        self.kernels = kernels
        self._caught = caught
        self._lock = threading.Lock()
        self._programs: dict[tuple[Step, ...], Program | None] = {}
        #: Layers whose tasks NumPy is the fastest for: they are not even read. Should a name stand
        #: for something else one day, that would run as Dask runs it.
        self._left: set[Any] = set()

    def wrap(self, task: Any) -> Any:
        """Return what runs a task by kernels; the task itself where there is nothing to gain."""
        return _KernelTask(task, self) if _promising(task) else task

    def run(self, task: Any, values: Mapping[Any, Any]) -> Any:
        """Return a task's result."""
        layer = task.key[0] if type(task.key) is tuple else task.key
        if layer in self._left:
            return task(values)
        try:
            found = None if _is_small(values) else self._program(task)
        except TooDeepError:
            found = None
        except Exception as error:
            self._caught("kernel.read", error)
            found = None
        if found is None:
            return task(values)
        program, params = found
        self.kernels.watch()
        result = program.run(params, values, self.kernels.evaluate)
        if not self.kernels.useful():
            self._leave(layer)
        return result

    def _leave(self, layer: Any) -> None:
        with self._lock:
            if len(self._left) >= _MOST_PROGRAMS:
                self._left.clear()
            self._left.add(layer)

    def _program(self, task: Any) -> tuple[Program, tuple[Any, ...]] | None:
        steps, params = read(task)
        try:
            program = self._programs[steps]
        except KeyError:
            made = Program(steps)
            program = made if made.worthwhile else None
            with self._lock:
                if len(self._programs) >= _MOST_PROGRAMS:
                    self._programs.clear()
                self._programs[steps] = program
        return None if program is None else (program, params)


class _KernelTask:
    """Stands for a task in distributed's worker while it runs."""

    __slots__ = ("_runner", "_task")

    is_coro = False

    def __init__(self, task: Any, runner: KernelRunner) -> None:
        self._task, self._runner = task, runner

    def __call__(self, values: Mapping[Any, Any] = {}) -> Any:  # as Dask's
        return self._runner.run(self._task, values)

    def __repr__(self) -> str:
        return repr(self._task)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


def _promising(task: Any) -> bool:
    """Whether a task may be more than one operation of NumPy, as far as one look tells."""
    if type(task) is not Task:
        return False
    if task.func is _execute_subgraph:
        return True
    if task.is_coro:
        return False
    func, bound, kwargs = unwrapped(task.func, task.kwargs)
    return reduction(func, bound, len(task.args), kwargs) is not None


def _is_small(values: Mapping[Any, Any]) -> bool:
    """Whether all results that a task uses are so small that NumPy is as fast as anything."""
    return bool(values) and all(
        type(value) is np.ndarray and value.size < LEAST for value in values.values()
    )
