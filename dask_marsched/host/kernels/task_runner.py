"""Runs a worker's tasks by kernels: distributed calls a wrapper instead of the task."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
from dask._task_spec import Task, _execute_subgraph

from dask_marsched.host.kernels.combining import Combining, combination, combine
from dask_marsched.host.kernels.partial_results import UnfitError
from dask_marsched.host.kernels.programs import Program
from dask_marsched.host.kernels.rules import reduction, unwrapped
from dask_marsched.host.kernels.structure import Place, TaskStep, UnreadableTaskError, read
from dask_marsched.host.kernels.templates import Template, outline
from dask_marsched.host.worker.input_release import (
    consume,
    leave_out_of_tracebacks,
    owned_inputs,
)
from dask_marsched.kernels.evaluator import LEAST_ELEMENTS, Kernels

#: Programs, templates and layers that are remembered; a graph has a few of each.
_MOST_PROGRAMS = 2048


class KernelRunner:
    """Runs tasks by kernels if that can be faster; tasks that cannot be read run as in Dask."""

    def __init__(self, kernels: Kernels, caught: Callable[[str, Exception], None]) -> None:
        self.kernels = kernels
        self._caught = caught
        self._lock = threading.Lock()
        self._program = lru_cache(_MOST_PROGRAMS)(Program)
        self._templates: dict[tuple[Any, ...], tuple[Program, Template]] = {}
        #: Names of layers without expressions, whose tasks are not read again. If a later layer
        #: has the same name, its tasks run as in Dask.
        self._left: dict[Any, None] = {}

    def wrap(self, task: Any) -> Any:
        """Return a wrapper that runs a task by kernels, or the task if that cannot be faster."""
        return _KernelTask(task, self) if may_contain_expression(task) else task

    def run(self, task: Any, values: Mapping[Any, Any]) -> Any:
        """Return a task's result."""
        combines = combination(task)
        if combines is not None:
            return self._combine(task, combines, values)
        layer = task.key[0] if type(task.key) is tuple else task.key
        values = owned_inputs(values)
        if layer in self._left or _is_small(values):
            return consume(task, values)
        try:
            found = self._read(task)
        except Exception as error:
            self._caught("kernel.read", error)
            return consume(task, values)
        if found is None or not found[0].worthwhile:
            self._remember(self._left, layer, None)
            return consume(task, values)
        program, params = found
        return program.run(params, values, self.kernels.evaluate, self._combine)

    def _combine(self, task: Any, found: Combining, values: Mapping[Any, Any]) -> Any:
        finish: Callable[[], Any] = partial(task, values)
        try:
            finish = combine(task, found, values)
        except (UnfitError, FloatingPointError):  # the task's own function warns
            pass
        except Exception as error:
            self._caught("kernel.combine", error)
        return finish()

    def _read(self, task: Any) -> tuple[Program, Sequence[Any]] | None:
        """Return a task's program and parameters, by a template if its outline is known."""
        drawn = outline(task)
        try:
            known = None if drawn is None else self._templates.get(drawn.text)
        except TypeError:  # an argument that is not hashable
            drawn = known = None
        if drawn is not None and known is not None:
            program, template = known
            return program, template.params(task, drawn.nodes)
        places: dict[int, Place] = {}
        try:
            steps, params = read(task, places)
        except (UnreadableTaskError, RecursionError):  # too many steps in a line
            return None
        program = self._program(steps)
        if drawn is not None and program.worthwhile:
            with contextlib.suppress(KeyError):
                found = program, Template(task, params, places, drawn)
                self._remember(self._templates, drawn.text, found)
        return program, params

    def _remember(self, where: dict[Any, Any], key: Any, value: Any) -> None:
        with self._lock:
            if len(where) >= _MOST_PROGRAMS:
                where.clear()
            where[key] = value


class _KernelTask:
    """Replaces a task in distributed's worker while it runs."""

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


for _function in (_KernelTask.__call__, KernelRunner.run, KernelRunner._combine):
    leave_out_of_tracebacks(_function)


def may_contain_expression(task: Any) -> bool:
    """Whether kernels may run a task: it is fused, or a stage of a reduction."""
    if type(task) is not Task:
        return False
    if task.func is _execute_subgraph:
        return True
    if task.is_coro:
        return False
    if combination(task) is not None:
        return True
    func, bound, kwargs = unwrapped(task.func, task.kwargs)
    return reduction(func, bound, len(task.args), kwargs) is not None


def _is_small(values: Mapping[Any, Any]) -> bool:
    """Whether a task only reads arrays that are too small for kernels."""
    return bool(values) and all(
        type(value) is np.ndarray and value.size < LEAST_ELEMENTS for value in values.values()
    )


def expressions(tasks: Iterable[Any]) -> dict[str, int]:
    """Return the expressions in some tasks, as text, with the number of tasks that contain them.

    The tasks are those that Dask has optimised. Whether a worker fuses an expression also depends
    on dtypes, and on whether that is faster than NumPy.
    """
    programs: dict[tuple[TaskStep, ...], Program] = {}
    found: Counter[str] = Counter()
    for task in tasks:
        if type(task) is not Task or not may_contain_expression(task):
            continue
        try:
            steps = read(task).steps
        except UnreadableTaskError:
            continue
        program = programs.get(steps)
        if program is None:
            program = programs[steps] = Program(steps)
        found.update(program.texts)
    return dict(found.most_common())
