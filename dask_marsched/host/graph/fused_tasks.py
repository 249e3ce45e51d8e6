"""Decides which tasks can be fused, and fuses several tasks into one."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import dask.utils
import numpy as np
from dask._task_spec import (
    Alias,
    DataNode,
    GraphNode,
    NestedContainer,
    Task,
    TaskRef,
    _execute_subgraph,
)
from dask.typing import Key

from dask_marsched.host.graph.array_layers import innermost
from dask_marsched.host.graph.bundles import bundled_in
from dask_marsched.host.graph.function_effects import describe_effects, within_reach
from dask_marsched.host.graph.task_effects import Effects, method_effects

#: Verdicts of `Joinable`: the task is never fused; its duration is unknown, since it calls a
#: user's function; its duration follows from the bytes that it reads and writes.
ALONE, UNCERTAIN, CERTAIN = 0, 1, 2

#: Packages whose functions take about as long as their bytes suggest.
_OF_ARRAYS = frozenset({
    "_operator", "builtins", "dask", "flox", "functools", "itertools", "math", "numpy",
    "numpy_groupies", "operator", "tlz", "toolz", "xarray",
})  # fmt: skip
#: Values that hold nothing else.
_PLAIN = frozenset({
    TaskRef, Alias, bool, bytes, complex, float, int, np.ndarray, slice, str, type(None),
})  # fmt: skip
_COLLECTIONS = frozenset({list, tuple, set, frozenset})
#: Most elements of a collection, levels of collections, values for one task or function, and
#: functions that call each other, that are examined.
_MOST_ELEMENTS, _MOST_LEVELS, _MOST_VALUES, _MOST_CALLS = 64, 5, 256, 16


class Joinable:
    """Decides which tasks can be fused with others.

    Excluded are stages of a shuffle, which the scheduler knows by their keys; coroutines, which
    workers run elsewhere; tasks that submit tasks or secede; and tasks that may wait for each
    other, since fused ones run in sequence.
    """

    def __init__(self) -> None:
        # Of functions and of steps, by id, with the object so that its id is not used again.
        self._known: dict[int, tuple[Any, int]] = {}
        self._left = 0
        #: By id, functions that are being examined, and whether one of them was met again.
        self._open: dict[int, Any] = {}
        self._is_circular = False

    def __call__(self, node: GraphNode) -> int:
        """Return `ALONE`, `UNCERTAIN` or `CERTAIN`."""
        kind = type(node)
        if kind is Alias or kind is DataNode:
            return CERTAIN
        if kind is not Task or node.block_fusion:
            return ALONE
        self._left = _MOST_VALUES
        return self._task(node)

    def _task(self, task: Any) -> int:
        function = task.func
        if function is _execute_subgraph:
            steps, _, _, *held = task.args
            verdict = self._steps(steps)
        elif function is NestedContainer.to_container:
            verdict, held = CERTAIN, task.args
        else:
            verdict = self._function(function)
            held = (*task.args, *task.kwargs.values()) if task.kwargs else task.args
        if not verdict or _PLAIN.issuperset(map(type, held)):  # frequent, and fast
            return verdict
        # Functions of libraries call nothing that lies deep in their arguments.
        return min(verdict, self._held(held, _MOST_LEVELS if verdict == UNCERTAIN else 1))

    def _steps(self, steps: Mapping[Key, Any]) -> int:
        known = self._known.get(id(steps))  # all tasks of a layer share them
        if known is not None:
            return known[1]
        tasks = (step for step in steps.values() if isinstance(step, Task))
        verdict = min(map(self._task, tasks), default=CERTAIN)
        if not self._open:
            self._known[id(steps)] = steps, verdict
        return verdict

    def _held(self, values: Iterable[Any], depth: int) -> int:
        """Return the least verdict of what is called, if all functions among the values are.

        `ALONE` if an Event, a Lock, a Client or the like is among them, which no code shows.
        """
        least = CERTAIN
        for value in islice(values, _MOST_ELEMENTS):
            kind = type(value)
            if kind is DataNode:
                value = value.value
                kind = type(value)
            if kind in _PLAIN:
                continue
            held = value.values() if kind is dict else value if kind in _COLLECTIONS else None
            if held is not None and _PLAIN.issuperset(map(type, islice(held, _MOST_ELEMENTS))):
                continue
            self._left -= 1
            if kind.__module__.partition(".")[0] == "distributed":
                return ALONE
            if self._left < 0:
                break
            if isinstance(value, Task):
                least = min(least, self._task(value))
            elif held is not None:
                if depth:
                    least = min(least, self._held(held, depth - 1))
            elif callable(value):
                least = min(least, self._function(value))
            if least == ALONE:
                break
        return least

    def _function(self, function: Any) -> int:
        known = self._known.get(id(function))
        if known is not None:
            return known[1]
        if id(function) in self._open or len(self._open) >= _MOST_CALLS:
            self._is_circular = True
            return CERTAIN
        is_first, left = not self._open, self._left
        if is_first:
            self._left, self._is_circular = _MOST_VALUES, False
        self._open[id(function)] = function
        verdict = self._examined(function)
        del self._open[id(function)]
        # Of functions that call each other, only the first one has been examined in full.
        if is_first or not (self._is_circular or self._left < 0):
            self._known[id(function)] = function, verdict
        if is_first:
            self._left = left
        return verdict

    def _examined(self, function: Any) -> int:
        inner = innermost(function)
        # A ufunc names no module.
        module = getattr(inner, "__module__", None) or type(inner).__module__ or ""
        package = module.partition(".")[0]
        if isinstance(inner, dask.utils.methodcaller | operator.methodcaller):
            # which may be a method of a user's object, of which nothing is known
            return CERTAIN if method_effects(inner) is not Effects.UNKNOWN else ALONE
        verdict = CERTAIN if package in _OF_ARRAYS else UNCERTAIN
        if package == "distributed" or any(describe_effects(function)):
            verdict = ALONE
        else:
            users = verdict == UNCERTAIN
            verdict = min(verdict, self._held(within_reach(function, inner, users), _MOST_LEVELS))
        return verdict


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


def tasks_in(node: Any) -> list[Key]:
    """Return the keys of the tasks that a bundle or a fused task runs, none for another task."""
    if not isinstance(node, Task) or node.func is not _execute_subgraph:
        return bundled_in(node)
    steps = node.args[0].items()
    inside = [key for name, step in steps for key in bundled_in(step) or [name]]
    return inside if node.key in inside else [*inside, node.key]  # an alias of the last


def targets(dsk: Mapping[Key, GraphNode]) -> dict[Key, Key]:
    """Return what the aliases in a graph stand for: other tasks in it.

    Dask renames the chains that it fuses, and leaves an alias of the old name.
    """
    aliases = {key: node.target for key, node in dsk.items() if isinstance(node, Alias)}
    return {key: target for key, target in aliases.items() if target in dsk}
