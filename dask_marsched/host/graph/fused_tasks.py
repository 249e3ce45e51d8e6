"""Decides which tasks can be fused, and fuses several tasks into one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from dask._task_spec import Alias, DataNode, GraphNode, Task, TaskRef, _execute_subgraph
from dask.typing import Key

from dask_marsched.host.graph.array_layers import innermost
from dask_marsched.host.graph.function_effects import describe_effects

#: Verdicts of `Joinable`: the task is never fused; its duration is unknown, since it calls a
#: user's function; its duration follows from the bytes that it reads and writes.
ALONE, UNCERTAIN, CERTAIN = 0, 1, 2

#: Packages whose functions take about as long as their bytes suggest.
_OF_ARRAYS = frozenset({
    "_operator", "builtins", "dask", "flox", "functools", "itertools", "math", "numpy",
    "numpy_groupies", "operator", "tlz", "toolz", "xarray",
})  # fmt: skip
#: Most elements of a collection, and most levels of collections, that are searched for locks.
_LOOKED_AT, _DEPTH = 64, 5


class Joinable:
    """Decides which tasks can be fused with others.

    Excluded are stages of a shuffle, which the scheduler knows by their keys; coroutines, which
    workers run elsewhere; tasks that submit tasks or secede; and tasks that may wait for each
    other, since fused ones run in sequence.
    """

    def __init__(self) -> None:
        # By id, with the function so that its id is not used again.
        self._functions: dict[int, tuple[Any, int]] = {}

    def __call__(self, node: GraphNode) -> int:
        """Return `ALONE`, `UNCERTAIN` or `CERTAIN`."""
        kind = type(node)
        if kind is Alias or kind is DataNode:
            return CERTAIN
        if kind is not Task or node.block_fusion:
            return ALONE
        verdict = self._functions_of(node)
        # Functions of libraries call nothing that lies deep in their arguments.
        depth = _DEPTH if verdict == UNCERTAIN else 1
        return ALONE if verdict and _holds_coordination([node], depth) else verdict

    def _functions_of(self, task: Any) -> int:
        function = task.func
        if function is _execute_subgraph:
            verdict = CERTAIN
            for step in task.args[0].values():
                if isinstance(step, Task):
                    verdict = min(verdict, self._functions_of(step))
            return verdict
        known = self._functions.get(id(function))
        return self._function(function) if known is None else known[1]

    def _function(self, function: Any) -> int:
        inner = innermost(function)
        # A ufunc names no module.
        module = getattr(inner, "__module__", None) or type(inner).__module__ or ""
        package = module.partition(".")[0]
        is_partial = isinstance(function, partial)
        bound = (function.args, function.keywords) if is_partial else ()
        if (
            package == "distributed"
            or any(describe_effects(function))
            or _holds_coordination(bound, _DEPTH)
        ):
            verdict = ALONE
        else:
            verdict = CERTAIN if package in _OF_ARRAYS else UNCERTAIN
        self._functions[id(function)] = function, verdict
        return verdict


def _holds_coordination(values: Iterable[Any], depth: int) -> bool:
    """Whether there is an Event, a Lock, a Client or the like, which the code does not show."""
    for value in islice(values, _LOOKED_AT):
        kind = type(value)
        if kind.__module__.partition(".")[0] == "distributed":
            return True
        held: Iterable[Any] = ()
        if isinstance(value, Task):
            held = (*value.args, *value.kwargs.values())
        elif isinstance(value, dict):
            held = value.values()
        elif kind in (list, tuple, set, frozenset):
            held = value
        if held and depth and _holds_coordination(held, depth - 1):
            return True
    return False


def join(head: Key, members: Sequence[Key], dsk: Mapping[Key, GraphNode]) -> GraphNode:
    """Fuse ``members``, each after those it reads, into ``head``, whose key the new task has.

    As with `GraphNode.fuse`, workers need nothing of this package.
    """
    steps = {key: dsk[key] for key in members}
    steps[head] = dsk[head]
    last = head
    while isinstance(alias := steps[last], Alias) and alias.target in steps:
        # The target of an alias takes the alias's key.
        del steps[last]
        last = alias.target
    if len(steps) == 1:
        (node,) = steps.values()
        return Alias(head, node.target) if isinstance(node, Alias) else node.substitute({}, head)
    reads: dict[Key, None] = {}
    for step in steps.values():
        reads.update(dict.fromkeys(step.dependencies))
    outside = tuple(key for key in reads if key not in steps)
    return Task(
        head,
        _execute_subgraph,
        steps,
        last,
        outside,
        *map(TaskRef, outside),
        # A task with inputs is no data producer, whatever its steps are.
        _data_producer=not outside and any(step.data_producer for step in steps.values()),
    )
