"""A worker's tasks, run by kernels: what distributed calls instead of the task."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from dask._task_spec import Task, _execute_subgraph

from dask_marsched.host.kernels.programs import Program
from dask_marsched.host.kernels.rules import reduction, unwrapped
from dask_marsched.host.kernels.structure import Place, Step, TooDeepError, read
from dask_marsched.host.kernels.templates import Template, outline
from dask_marsched.host.worker.input_release import consume, owned_inputs
from dask_marsched.kernels.evaluator import LEAST, Kernels

#: Structures that are remembered; there are a few in each graph.
_MOST_PROGRAMS = 2048


class _Found(NamedTuple):
    """How to run a task: its program, and the parameters of its structure."""

    program: Program
    params: Sequence[Any]


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
        self._programs: dict[tuple[Step, ...], Program] = {}
        self._templates: dict[tuple[Any, ...], tuple[Program, Template]] = {}
        #: Layers whose tasks have nothing to gain: they are not read again. Should a name stand
        #: for something else one day, that would run as Dask runs it.
        self._left: dict[Any, None] = {}

    def wrap(self, task: Any) -> Any:
        """Return what runs a task by kernels; the task itself where there is nothing to gain."""
        return _KernelTask(task, self) if is_promising(task) else task

    def run(self, task: Any, values: Mapping[Any, Any]) -> Any:
        """Return a task's result."""
        layer = task.key[0] if type(task.key) is tuple else task.key
        values = owned_inputs(values)
        if layer in self._left or _is_small(values):
            return consume(task, values)
        try:
            found = self._known(task) or self._program(task)
        except TooDeepError:
            found = None
        except Exception as error:
            self._caught("kernel.read", error)
            return consume(task, values)
        if found is None:
            self._remember(self._left, layer, None)
            return consume(task, values)
        return found.program.run(found.params, values, self.kernels.evaluate)

    def _known(self, task: Any) -> _Found | None:
        """Return how to run a task, if one of its outline has been read before."""
        drawn = outline(task)
        if drawn is None:
            return None
        try:
            known = self._templates.get(drawn.text)
        except TypeError:  # an argument that cannot be compared
            return None
        if known is None:
            places: dict[int, Place] = {}
            steps, params = read(task, places)
            program = self._programs.get(steps) or self._made(steps)
            if not program.worthwhile:
                return None
            try:
                known = program, Template(task, params, places, drawn)
            except KeyError:
                return _Found(program, params)
            self._remember(self._templates, drawn.text, known)
        program, template = known
        return _Found(program, template.params(task, drawn.nodes))

    def _program(self, task: Any) -> _Found | None:
        steps, params = read(task)
        program = self._programs.get(steps) or self._made(steps)
        return _Found(program, params) if program.worthwhile else None

    def _made(self, steps: tuple[Step, ...]) -> Program:
        program = Program(steps)
        self._remember(self._programs, steps, program)
        return program

    def _remember(self, where: dict[Any, Any], what: Any, value: Any) -> None:
        with self._lock:
            if len(where) >= _MOST_PROGRAMS:
                where.clear()
            where[what] = value


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


def is_promising(task: Any) -> bool:
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
