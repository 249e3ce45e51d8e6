"""Finds the program of a fused task without reading it in full.

Reading a task takes as long as evaluating a small chunk (40 us, a template 10 us). Tasks of one
layer differ only in keys and values of literals. Everything else is their *outline*, by which a
template is found.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from dask._task_spec import Alias, DataNode, GraphNode, Task, TaskRef, _execute_subgraph

from dask_marsched.host.kernels.rules import unwrapped
from dask_marsched.host.kernels.structure import Place, StepOrigin

_MOST_NODES = 200
_POWERS = (operator.pow, np.power, np.float_power)
_SIMPLE = (type(abs), np.ufunc)
_PLAIN = frozenset({bool, int, float, complex})


class Outline(NamedTuple):
    """The outline of a task."""

    text: tuple[Any, ...]  #: Equal for tasks of one structure.
    nodes: list[Any]  #: The tasks and values inside the task.


class _NotDrawnError(Exception):
    """A task has no outline."""


def outline(task: Any) -> Outline | None:
    """Return the outline of a fused task; None if it has to be read in full."""
    if task.func is not _execute_subgraph:
        return None
    text: list[Any] = []
    nodes: list[Any] = []
    try:
        _draw_fused(task, {}, text, nodes, nested=False)
    except (_NotDrawnError, KeyError):
        return None
    return Outline(tuple(text), nodes)


def _draw_fused(
    task: Any, outer: Mapping[Any, int], text: list[Any], nodes: list[Any], nested: bool = True
) -> None:
    inner, out, names, *bound = task.args
    if type(inner) is not dict or task.kwargs or len(nodes) + len(inner) > _MOST_NODES:
        raise _NotDrawnError
    numbers: dict[Any, int] = {}
    own: dict[Any, int] = {}
    for number, (name, source) in enumerate(zip(names, bound, strict=True)):
        numbers[name] = -1 - number
        if type(source) is DataNode:
            nodes.append(source)
            text.append(_written(source.value))
        elif type(source) is TaskRef:
            # an input of the task, which may have several names inside
            text.append(outer[source.key] if nested else own.setdefault(source.key, number))
        else:
            raise _NotDrawnError
    for number, name in enumerate(inner):
        if name in numbers:
            raise _NotDrawnError
        numbers[name] = number
    text += (len(bound), len(inner), numbers.get(out))
    for node in inner.values():
        kind = type(node)
        if kind is Task:
            if node.func is _execute_subgraph:
                text.append(kind)
                _draw_fused(node, numbers, text, nodes)
            else:
                nodes.append(node)
                _draw(node, numbers, text)
        elif kind is DataNode:
            nodes.append(node)
            text.append(_written(node.value))
        elif kind is Alias:
            text.append((Alias, numbers.get(node.target)))
        else:
            raise _NotDrawnError


def _draw(node: Any, numbers: Mapping[Any, int], text: list[Any]) -> None:
    func, args = node.func, node.args
    simple = type(func) in _SIMPLE and func not in _POWERS
    if node.kwargs or type(func) is functools.partial:
        func, more, kwargs = unwrapped(func, node.kwargs)
        text += more
        for name, value in kwargs.items():
            if isinstance(value, GraphNode | TaskRef):
                raise _NotDrawnError
            text.append((name, type(value), value))
    text.append(func)
    text.append(len(args))
    for arg in args:
        kind = type(arg)
        if kind is TaskRef:
            number = numbers.get(arg.key)
            if number is None:
                raise _NotDrawnError
            text.append(number)
        elif simple and kind in _PLAIN:
            text.append(kind)
        elif isinstance(arg, GraphNode):
            raise _NotDrawnError
        else:
            text.append(_written(arg))


def _written(value: Any) -> tuple[Any, ...]:
    """Return the outline of a literal: exponents and axes are a part of the structure."""
    kind = type(value)
    if kind in _PLAIN:
        return kind, value if value == value else None  # NaN, which equals nothing
    if kind is tuple and all(type(item) is int for item in value):
        return kind, value
    return kind, None


class Template:
    """The places in a task of the parameters of its structure.

    ``params`` and ``places`` are as `read` returned and filled them. Raises a KeyError if a
    parameter is not in the nodes of the outline ``found``.
    """

    def __init__(
        self, task: Any, params: tuple[Any, ...], places: Mapping[int, Place], found: Outline
    ) -> None:
        numbers = {id(node): number for number, node in enumerate(found.nodes)}
        if len(numbers) < len(found.nodes):
            raise KeyError("one node in two places")
        bound = enumerate(task.args[3:], start=3)
        sources = {arg.key: place for place, arg in bound if type(arg) is TaskRef}
        self._size = len(params)
        self._inputs: list[tuple[int, int]] = []
        self._literals: list[tuple[int, int, int | None]] = []
        self._nodes: list[tuple[int, int]] = []
        for step, param in enumerate(params):
            if step in places:
                node, index = places[step]
                self._literals.append((step, numbers[id(node)], index))
            elif type(param) is not StepOrigin:
                self._inputs.append((step, sources[param]))
            elif param.node is not None:
                self._nodes.append((step, numbers[id(param.node)]))

    def params(self, task: Any, nodes: list[Any]) -> list[Any]:
        """Return the parameters of a task with this outline; origins have no names."""
        found: list[Any] = [_NOTHING] * self._size
        args = task.args
        for step, place in self._inputs:
            found[step] = args[place].key
        for step, number, index in self._literals:
            node = nodes[number]
            found[step] = node.value if index is None else node.args[index]
        for step, number in self._nodes:
            found[step] = StepOrigin(nodes[number], None)
        return found


_NOTHING = StepOrigin(None, ())
