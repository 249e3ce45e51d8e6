"""Which expressions workers can fuse in a graph, before it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from dask._task_spec import Task

from dask_marsched.host.kernels.programs import Program
from dask_marsched.host.kernels.structure import Step, TooDeepError, read
from dask_marsched.host.kernels.task_runner import is_promising


def expressions(tasks: Iterable[Any]) -> dict[str, int]:
    """Return what can be fused in some tasks, as text, with the number of tasks it is in.

    Parameters
    ----------
    tasks
        As Dask has optimised them. What is fused of them in the end depends on their dtypes, and
        on what is found to be faster than NumPy.
    """
    programs: dict[tuple[Step, ...], Program] = {}
    found: Counter[str] = Counter()
    for task in tasks:
        if type(task) is not Task or not is_promising(task):
            continue
        try:
            steps = read(task).steps
        except TooDeepError:
            continue
        program = programs.get(steps)
        if program is None:
            program = programs[steps] = Program(steps)
        found.update(program.texts)
    return dict(found.most_common())
