"""Releases each input and intermediate result of a task after its last use, not at its end."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from dask._task_spec import DataNode, GraphNode, Task, TaskRef, _execute_subgraph
from dask.order import order
from dask.typing import Key


class OwnedInputs(dict[Any, Any]):
    """Inputs in a mapping that only the task reads, so that it may empty it."""


def owned_inputs(values: Mapping[Key, Any]) -> OwnedInputs:
    """Return a task's inputs as `OwnedInputs`, copied unless they are already."""
    return values if type(values) is OwnedInputs else OwnedInputs(values)


class InputReleasingTask:
    """Replaces a running task's spec, and passes ownership of the inputs to the task."""

    __slots__ = ("_held", "compute")

    is_coro = False

    def __init__(self, compute: Callable[[Any], Any], held: dict[Key, Any] | None = None) -> None:
        # `held` keeps loaded inputs in memory until the task starts.
        self.compute, self._held = compute, held

    def __call__(self, data: dict[Key, Any]) -> Any:
        """Compute, and empty the mapping of the inputs."""
        values = OwnedInputs(data)
        data.clear()  # distributed keeps the mapping until the task ends, but reads it no more
        if self._held is not None:
            self._held.clear()
        return consume(self.compute, values)

    def __repr__(self) -> str:
        return repr(self.compute)  # for distributed's log of failed tasks


def leave_out_of_tracebacks(function: Any) -> None:
    """Make tracebacks begin with the task, as in stock Dask, which filters by file name."""
    function.__code__ = function.__code__.replace(
        co_filename=os.path.join("distributed", "worker", "dask_marsched")
    )


def consume(compute: Callable[[Any], Any], values: Mapping[Key, Any]) -> Any:
    """Return the result of a task, or a wrapper of one, from its inputs by key."""
    # A fused task empties `OwnedInputs`.
    if (
        type(values) is OwnedInputs
        and type(compute) is Task
        and compute.func is _execute_subgraph
        and not compute.kwargs
    ):
        return _run(compute, values)
    return compute(values)


def releases_inputs(compute: Any) -> bool:
    """Whether a task, or the task in a wrapper, releases inputs before it ends."""
    while (inner := getattr(compute, "compute", None)) is not None:
        compute = inner
    return getattr(compute, "func", None) is _execute_subgraph


def runs_in_thread(worker: Any, ts: Any) -> bool:
    """Whether a worker runs a task in a thread of its own process."""
    if ts.run_spec is None or ts.run_spec.is_coro:
        return False
    executor = worker.executors.get((ts.annotations or {}).get("executor", "default"))
    return "ThreadPoolExecutor" in str(type(executor))


def _run(task: Task, values: OwnedInputs) -> Any:
    """Run a fused task like Dask's `_execute_subgraph`, in the same order."""
    inner, result, names, *args = task.args
    found = {name: _argument(arg, values) for name, arg in zip(names, args, strict=True)}
    values.clear()
    steps: dict[Any, GraphNode] = {**inner, **{name: DataNode(None, None) for name in names}}
    left = Counter(name for step in steps.values() for name in step.dependencies)
    left[result] += 1
    priorities = order(steps)
    for name in sorted(steps.keys() - found.keys(), key=priorities.__getitem__):
        step = steps[name]
        own = OwnedInputs()
        for other in step.dependencies:
            left[other] -= 1
            own[other] = found[other] if left[other] else found.pop(other)
        found[name] = consume(step, own)
        del own
    return found[result]


def _argument(arg: Any, values: OwnedInputs) -> Any:
    if isinstance(arg, TaskRef):
        return values[arg.key]
    return arg(values) if isinstance(arg, GraphNode) else arg


for _function in (InputReleasingTask.__call__, consume, _run):
    leave_out_of_tracebacks(_function)
