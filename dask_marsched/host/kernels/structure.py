"""What a task computes, as a list of steps: fused tasks are unfolded, functions recognised.

Tasks of the chunks of one array have the same structure; only keys and literals differ. So the
structure is a value of its own, by which what was made from it is found again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from dask._task_spec import Alias, DataNode, GraphNode, Task, TaskRef, _execute_subgraph

from dask_marsched.host.kernels.rules import Operation, Reduction, operation, reduction, unwrapped
from dask_marsched.kernels.expression import MOST_MULTIPLIED

_SCALARS = (bool, int, float, complex)
_EXPONENTS = frozenset({2, 1, -1, 0.5, *range(3, MOST_MULTIPLIED + 1)})
#: Of functions that are recognised as they are, without anything bound to them.
_SIMPLE = (type(abs), np.ufunc)
_POWERS = frozenset({"pow", "power"})


class Step(NamedTuple):
    """One step of a task.

    Attributes
    ----------
    kind
        ``"input"`` a result of another task, ``"literal"`` a value in the task, ``"operation"``,
        ``"reduction"``, ``"opaque"`` whatever is not understood.
    what
        Name and parameter of the operation; the reduction; the type of the literal.
    args
        Numbers of the steps that are its operands.
    uses
        Numbers of the steps that its task refers to, in the order of `Origin.names`.
    """

    kind: str
    what: Any = None
    args: tuple[int, ...] = ()
    uses: tuple[int, ...] = ()


class Origin(NamedTuple):
    """The task that a step was made from: what Dask would have run.

    Attributes
    ----------
    node
        The task; None if it is told by the next step.
    names
        Of the results that it refers to; None if the task has to be asked (`references`).
    """

    node: Any
    names: tuple[Any, ...] | None


class Structure(NamedTuple):
    """What a task computes.

    Attributes
    ----------
    steps
        In the order of their evaluation; the last one is the result.
    params
        By step: the key of an input, the value of a literal, the `Origin` of anything else.
    """

    steps: tuple[Step, ...]
    params: tuple[Any, ...]


#: Where a literal is: a task, and which of its arguments; a node of its own, and None.
Place = tuple[Any, int | None]


class _Scope:
    """The names in a fused task; in those around it, what they are bound to."""

    __slots__ = ("bound", "known", "nodes", "outer")

    def __init__(
        self, nodes: Mapping[Any, Any], bound: Mapping[Any, Any], outer: _Scope | None
    ) -> None:
        self.nodes, self.bound, self.outer = nodes, bound, outer
        self.known: dict[Any, int] = {}


class TooDeepError(Exception):
    """A task is nested deeper than it is worth to look."""


_MOST_STEPS = 200


class _Reader:
    """Reads one task."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.params: list[Any] = []
        self.places: dict[int, Place] = {}

    def add(self, step: Step, param: Any = None) -> int:
        if len(self.steps) >= _MOST_STEPS:
            raise TooDeepError
        self.steps.append(step)
        self.params.append(param)
        return len(self.steps) - 1

    def name(self, name: Any, scope: _Scope) -> int:
        """Return the step that a name stands for."""
        found = scope.known.get(name)
        if found is None:
            if name in scope.bound and scope.outer is not None:
                found = self.argument(scope.bound[name], scope.outer)
            elif name in scope.nodes:
                found = self.node(scope.nodes[name], scope)
            elif scope.outer is None:
                found = self.add(Step("input"), name)
            else:
                raise TooDeepError  # a name that stands for nothing
            scope.known[name] = found
        return found

    def argument(self, arg: Any, scope: _Scope) -> int:
        """Return the step that an argument of a task stands for."""
        if isinstance(arg, TaskRef):
            return self.name(arg.key, scope)
        if isinstance(arg, GraphNode):
            return self.node(arg, scope)
        return self.literal(arg)

    def literal(self, value: Any) -> int:
        return self.add(Step("literal", type(value) if type(value) in _SCALARS else None), value)

    def node(self, node: Any, scope: _Scope) -> int:
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
                inner = _Scope(nodes, dict(zip(names, bound, strict=True)), scope)
                return self.name(out, inner)
        return self.task(node, scope)

    def task(self, node: Task, scope: _Scope) -> int:
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

    def operation(self, found: Any, node: Task, scope: _Scope) -> int:
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
            step = Step("operation", (op, param), args, uses if last else ())
            args = (self.add(step, origin if last else Origin(None, ())),)
        return args[0]

    def _clip(self, found: list[Operation], args: tuple[int, ...]) -> Any:
        """Return what NumPy makes of a missing bound."""
        missing = [n for n in (1, 2) if self.steps[args[n]].kind == "literal"
                   and self.params[args[n]] is None]  # fmt: skip
        if len(missing) != 1:
            return found, args
        op = Operation("minimum" if missing == [1] else "maximum")
        return [op, *found[1:]], (args[0], args[3 - missing[0]])

    def reduction(self, found: Reduction, node: Task, scope: _Scope) -> int:
        if found.form == "arg":
            axes, offsets = node.args[1:]
            plain = type(axes) is tuple and all(type(a) is int and a >= 0 for a in axes)
            if not plain or isinstance(offsets, GraphNode | TaskRef):
                return self.opaque(node, scope)
            found = found._replace(axes=axes)
        value = self.argument(node.args[0], scope)
        uses, origin = self._origin(node, scope)
        return self.add(Step("reduction", found, (value,), uses), origin)

    def opaque(self, node: Any, scope: _Scope) -> int:
        uses, origin = self._origin(node, scope)
        return self.add(Step("opaque", None, uses, uses), origin)

    def _origin_of_operation(
        self, node: Task, args: tuple[int, ...], scope: _Scope
    ) -> tuple[tuple[int, ...], Origin]:
        """Do as `_origin`, at less cost for what nearly all operations are."""
        names: dict[Any, int] = {}
        for arg, step in zip(node.args, args, strict=True):
            if type(arg) is TaskRef:
                names[arg.key] = step
            elif isinstance(arg, Task):
                return self._origin(node, scope)
            elif isinstance(arg, Alias):
                names[arg.target] = step
        return tuple(names.values()), Origin(node, tuple(names))

    def _origin(self, node: Any, scope: _Scope) -> tuple[tuple[int, ...], Origin]:
        names = references(node)
        if len(names) != len(node.dependencies):
            raise TooDeepError  # a kind of node that is not known
        return tuple(self.name(name, scope) for name in names), Origin(node, names)


def references(node: Any) -> tuple[Any, ...]:
    """Return the names that a node refers to, each once, in the order of its arguments."""
    return tuple(dict.fromkeys(_references(node)))


def _references(node: Any) -> Iterator[Any]:
    """Yield the names that a node refers to, in the order of its arguments."""
    if isinstance(node, TaskRef):
        yield node.key
    elif isinstance(node, Alias):
        yield node.target
    elif isinstance(node, Task):
        for arg in (*node.args, *node.kwargs.values()):
            yield from _references(arg)


def read(task: Any, places: dict[int, Place] | None = None) -> Structure:
    """Return what a task computes.

    Parameters
    ----------
    task
        A task of Dask's.
    places
        Is told, by step, where literals come from.

    Raises
    ------
    TooDeepError
        If it is too large to be looked at.
    """
    reader = _Reader()
    result = reader.node(task, _Scope({}, {}, None))
    if result != len(reader.steps) - 1:
        raise TooDeepError  # nothing but another name
    if places is not None:
        places.update(reader.places)
    return Structure(tuple(reader.steps), tuple(reader.params))
