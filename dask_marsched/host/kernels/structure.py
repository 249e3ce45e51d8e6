"""Reads a task into a list of steps: fused tasks are unfolded, functions are recognized.

Tasks of an array's chunks differ only in keys and literals; their equal steps identify a program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from dask._task_spec import Alias, DataNode, GraphNode, Task, TaskRef, _execute_subgraph

from dask_marsched.host.kernels.combining import combination
from dask_marsched.host.kernels.rules import (
    RecognizedOperation,
    RecognizedReduction,
    operation,
    reduction,
    unwrapped,
)
from dask_marsched.kernels.expression import MOST_MULTIPLIED

_SCALARS = (bool, int, float, complex)
_EXPONENTS = frozenset({2, 1, -1, 0.5, *range(3, MOST_MULTIPLIED + 1)})
#: Types of functions that are not partials.
_SIMPLE = (type(abs), np.ufunc)
_POWERS = frozenset({"pow", "power"})


class TaskStep(NamedTuple):
    """One step of a task."""

    #: ``"input"`` for a result of another task, ``"literal"`` for a value in the task,
    #: ``"operation"``, ``"reduction"``, or ``"opaque"`` for anything else.
    kind: str
    #: Name and parameter of the operation; the reduction; the type of the literal; the
    #: `Combining` of an opaque step, if it is one.
    what: Any = None
    args: tuple[int, ...] = ()  #: Numbers of the steps that are its operands.
    #: Numbers of the steps that its task refers to, in the order of `StepOrigin.names`.
    uses: tuple[int, ...] = ()


class StepOrigin(NamedTuple):
    """The task of a step, which Dask would have run."""

    node: Any  #: The task; None for a step whose task is that of the next one.
    #: Names of results in the task; None if they have to be read from it (`references`).
    names: tuple[Any, ...] | None


class Structure(NamedTuple):
    """A task that was read."""

    steps: tuple[TaskStep, ...]  #: In the order of their evaluation; the last one is the result.
    params: tuple[Any, ...]  #: By step: key of an input, value of a literal, else `StepOrigin`.


#: The place of a literal: a task and the index of an argument, or a `DataNode` and None.
Place = tuple[Any, int | None]


class _FusedScope(NamedTuple):
    """The names in a fused task: its own nodes, and names bound to arguments in the outer task."""

    nodes: Mapping[Any, Any]
    bound: Mapping[Any, Any]
    outer: _FusedScope | None
    known: dict[Any, int]  #: Steps by name, as far as they were read.


class UnreadableTaskError(Exception):
    """A task is too large to be read, or has an unknown form."""


_MOST_STEPS = 200


class _TaskReader:
    def __init__(self) -> None:
        self.steps: list[TaskStep] = []
        self.params: list[Any] = []
        self.places: dict[int, Place] = {}

    def add(self, step: TaskStep, param: Any = None) -> int:
        if len(self.steps) >= _MOST_STEPS:
            raise UnreadableTaskError
        self.steps.append(step)
        self.params.append(param)
        return len(self.steps) - 1

    def name(self, name: Any, scope: _FusedScope) -> int:
        """Return the step that a name stands for."""
        found = scope.known.get(name)
        if found is None:
            if name in scope.bound and scope.outer is not None:
                found = self.argument(scope.bound[name], scope.outer)
            elif name in scope.nodes:
                found = self.node(scope.nodes[name], scope)
            elif scope.outer is None:
                found = self.add(TaskStep("input"), name)
            else:
                raise UnreadableTaskError  # a name without a meaning
            scope.known[name] = found
        return found

    def argument(self, arg: Any, scope: _FusedScope) -> int:
        """Return the step that an argument of a task stands for."""
        if isinstance(arg, TaskRef):
            return self.name(arg.key, scope)
        if isinstance(arg, GraphNode):
            return self.node(arg, scope)
        return self.literal(arg)

    def literal(self, value: Any) -> int:
        return self.add(
            TaskStep("literal", type(value) if type(value) in _SCALARS else None), value
        )

    def node(self, node: Any, scope: _FusedScope) -> int:
        """Return the step that a node of a graph stands for."""
        if isinstance(node, Alias):
            return self.name(node.target, scope)
        if isinstance(node, DataNode):
            found = self.literal(node.value)
            self.places[found] = (node, None)
            return found
        if type(node) is not Task:
            return self.opaque(node, scope)
        if node.func is _execute_subgraph and not node.kwargs:
            nodes, out, names, *bound = node.args
            if type(nodes) is dict:
                inner = _FusedScope(nodes, dict(zip(names, bound, strict=True)), scope, {})
                return self.name(out, inner)
        return self.task(node, scope)

    def task(self, node: Task, scope: _FusedScope) -> int:
        if not node.kwargs and type(node.func) in _SIMPLE:
            simple = operation(node.func, len(node.args), node.kwargs)
            return (
                self.opaque(node, scope) if simple is None else self.operation(simple, node, scope)
            )
        func, bound, kwargs = unwrapped(node.func, node.kwargs)
        if not any(isinstance(value, GraphNode | TaskRef) for value in kwargs.values()):
            found = None if bound else operation(func, len(node.args), kwargs)
            if found is not None:
                return self.operation(found, node, scope)
            reduced = reduction(func, bound, len(node.args), kwargs)
            if reduced is not None:
                return self.reduction(reduced, node, scope)
        return self.opaque(node, scope)

    def operation(self, found: Any, node: Task, scope: _FusedScope) -> int:
        args = tuple(self.argument(arg, scope) for arg in node.args)
        for index, arg in enumerate(node.args):
            if not isinstance(arg, GraphNode | TaskRef):
                self.places[args[index]] = (node, index)
        uses, origin = self._origin_of_operation(node, args, scope)
        if found[0].op == "clip":
            found, args = self._clip(found, args)
        for number, (op, param) in enumerate(found, 1 - len(found)):
            if op in _POWERS:
                exponent = self.params[args[1]]
                plain = self.steps[args[1]].what in (int, float)
                param = exponent if plain and exponent in _EXPONENTS else None
            last = number == 0
            step = TaskStep("operation", (op, param), args, uses if last else ())
            args = (self.add(step, origin if last else StepOrigin(None, ())),)
        return args[0]

    def _clip(self, found: list[RecognizedOperation], args: tuple[int, ...]) -> Any:
        """Return the operation and operands of a clip, of which one bound may be missing."""
        missing = [n for n in (1, 2) if self.steps[args[n]].kind == "literal"
                   and self.params[args[n]] is None]  # fmt: skip
        if len(missing) != 1:
            return found, args
        op = RecognizedOperation("clip_max" if missing == [1] else "clip_min")
        return [op, *found[1:]], (args[0], args[3 - missing[0]])

    def reduction(self, found: RecognizedReduction, node: Task, scope: _FusedScope) -> int:
        if found.form == "arg":
            axes, offsets = node.args[1:]
            plain = type(axes) is tuple and all(type(a) is int and a >= 0 for a in axes)
            if not plain or isinstance(offsets, GraphNode | TaskRef):
                return self.opaque(node, scope)
            found = found._replace(axes=axes)
        value = self.argument(node.args[0], scope)
        uses, origin = self._origin(node, scope)
        return self.add(TaskStep("reduction", found, (value,), uses), origin)

    def opaque(self, node: Any, scope: _FusedScope) -> int:
        uses, origin = self._origin(node, scope)
        return self.add(TaskStep("opaque", combination(node), uses, uses), origin)

    def _origin_of_operation(
        self, node: Task, args: tuple[int, ...], scope: _FusedScope
    ) -> tuple[tuple[int, ...], StepOrigin]:
        """Return the same as `_origin`, faster for most operations."""
        names: dict[Any, int] = {}
        for arg, step in zip(node.args, args, strict=True):
            if type(arg) is TaskRef:
                names[arg.key] = step
            elif isinstance(arg, Task):
                return self._origin(node, scope)
            elif isinstance(arg, Alias):
                names[arg.target] = step
        return tuple(names.values()), StepOrigin(node, tuple(names))

    def _origin(self, node: Any, scope: _FusedScope) -> tuple[tuple[int, ...], StepOrigin]:
        names = references(node)
        if len(names) != len(node.dependencies):
            raise UnreadableTaskError  # an unknown kind of node
        return tuple(self.name(name, scope) for name in names), StepOrigin(node, names)


def references(node: Any) -> tuple[Any, ...]:
    """Return the names in a node, each once, in the order of its arguments."""
    return tuple(dict.fromkeys(_references(node)))


def _references(node: Any) -> Iterator[Any]:
    if isinstance(node, TaskRef):
        yield node.key
    elif isinstance(node, Alias):
        yield node.target
    elif isinstance(node, Task):
        for arg in (*node.args, *node.kwargs.values()):
            yield from _references(arg)


def read(task: Any, places: dict[int, Place] | None = None) -> Structure:
    """Read a task and fill ``places``; raise an UnreadableTaskError if it cannot be read."""
    reader = _TaskReader()
    result = reader.node(task, _FusedScope({}, {}, None, {}))
    if result != len(reader.steps) - 1:
        raise UnreadableTaskError  # only another name
    if places is not None:
        places.update(reader.places)
    return Structure(tuple(reader.steps), tuple(reader.params))
