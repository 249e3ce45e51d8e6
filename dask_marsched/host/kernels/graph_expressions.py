"""Finds the expressions in a graph that workers can fuse, before it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from dask._task_spec import Task

from dask_marsched.host.kernels.programs import Program
from dask_marsched.host.kernels.structure import TaskStep, UnreadableTaskError, read
from dask_marsched.host.kernels.task_runner import may_contain_expression


def expressions(tasks: Iterable[Any]) -> dict[str, int]:
    """Return the expressions in optimised tasks, as text, with the number of tasks that have each.

    Whether a worker fuses one also depends on dtypes and on NumPy's speed.
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
