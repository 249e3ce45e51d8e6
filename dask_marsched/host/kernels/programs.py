"""Runs a task part by part: expressions by kernels, everything else as Dask does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_marsched.host.kernels.fused_parts import FORMS, Elementwise, Evaluate, FusedPart
from dask_marsched.host.kernels.structure import TaskStep, references
from dask_marsched.host.worker.input_release import leave_out_of_tracebacks
from dask_marsched.kernels.expression import Node, NotUnderstoodError
from dask_marsched.kernels.numpy_backend import OwnedValues

_PLAIN = (bool, int, float, complex)
#: Runs the task of a `dask_marsched.host.kernels.combining.Combining` with inputs by name.
Combine = Callable[[Any, Any, dict[Any, Any]], Any]


class _Part(NamedTuple):
    """A part of a program; all steps are given by their numbers."""

    result: int  #: The step that it computes.
    members: tuple[int, ...]  #: Its steps, in their order; Dask would run them one by one.
    inputs: tuple[int, ...]  #: Other steps whose results a kernel uses.
    referred: tuple[int, ...]  #: Other steps that Dask's tasks of the members refer to.
    fused: FusedPart | None  #: None if the members have to be run as Dask does.
    done: tuple[int, ...] = ()  #: Steps whose results are not needed after the part.
    #: By member, steps whose results are not needed after it, if members run one by one.
    dropped: tuple[tuple[int, ...], ...] = ()


class Program:
    """Runs tasks of one structure, whose steps it is made from."""

    def __init__(self, steps: tuple[TaskStep, ...]) -> None:
        self.steps = steps
        self._inputs = [n for n, step in enumerate(steps) if step.kind == "input"]
        self._literals = [n for n, step in enumerate(steps) if step.kind == "literal"]
        groups = _groups(steps)
        members: dict[int, list[int]] = {}
        for number, group in enumerate(groups):
            if steps[number].kind not in ("input", "literal"):
                members.setdefault(group, []).append(number)
        parts = [self._part(root, tuple(own)) for root, own in sorted(members.items())]
        self.parts = [_with_drops(part, steps) for part in _with_ends(parts, len(steps) - 1)]
        #: Whether kernels can gain anything.
        self.worthwhile = any(
            part.fused is not None and part.fused.worthwhile for part in parts
        ) or any(step.kind == "opaque" and step.what is not None for step in steps)

    @property
    def texts(self) -> tuple[str, ...]:
        """The fused expressions in Python's notation."""
        fused_parts = (part.fused for part in self.parts if part.fused is not None)
        return tuple(fused.expression.text() for fused in fused_parts if fused.worthwhile)

    def _part(self, root: int, members: tuple[int, ...]) -> _Part:
        steps = self.steps
        if steps[root].kind == "opaque":
            return _Part(root, members, steps[root].args, steps[root].args, None)
        nodes: list[Node] = []
        places: dict[int, int] = {}
        inputs: list[int] = []
        own = set(members)
        for member in members:
            for arg in steps[member].args:
                if arg not in own and arg not in places:
                    places[arg] = len(nodes)
                    nodes.append(Node("input", (), len(inputs)))
                    inputs.append(arg)
            if steps[member].kind == "operation":
                op, param = steps[member].what
                args = tuple(places[arg] for arg in steps[member].args)
                places[member] = len(nodes)
                nodes.append(Node(op, args, param))
        referred = tuple(use for m in members for use in steps[m].uses if use not in own)
        fused: FusedPart
        try:
            if steps[root].kind == "operation":
                fused = Elementwise(nodes)
            else:
                found = steps[root].what
                fused = FORMS[found.form](nodes, places[steps[root].args[0]], found)
        except NotUnderstoodError:
            return _Part(root, members, tuple(inputs), referred, None)
        return _Part(root, members, tuple(inputs), referred, fused)

    def run(
        self,
        params: Sequence[Any],
        values: dict[Any, Any],
        evaluate: Evaluate,
        combine: Combine,
    ) -> Any:
        """Return the result of a task, given its structure's ``params`` and its inputs by key.

        The mapping ``values`` is emptied, so that each result can be released after its last use.
        """
        found: dict[int, Any] = {number: values[params[number]] for number in self._inputs}
        values.clear()
        for number in self._literals:
            found[number] = params[number]
        for part in self.parts:
            found[part.result] = self._run(part, params, found, evaluate, combine)
            for number in part.done:
                found.pop(number, None)
        return found[len(self.steps) - 1]

    def _run(
        self,
        part: _Part,
        params: Sequence[Any],
        found: dict[int, Any],
        evaluate: Evaluate,
        combine: Combine,
    ) -> Any:
        if part.fused is not None and part.fused.worthwhile:
            operands = OwnedValues(found[number] for number in part.inputs)
            if all(map(_is_plain, operands)):
                for number in part.done:
                    if number in part.inputs:
                        del found[number]  # only `operands` refers to it now
                try:
                    return part.fused.run(operands, params[part.result].node, evaluate)
                except NotUnderstoodError:
                    found.update(zip(part.inputs, operands, strict=False))
            del operands  # so that results can be released on the way
        for number, dropped in zip(part.members, part.dropped, strict=True):
            node, names = params[number]
            if node is not None:
                step = self.steps[number]
                if names is None:
                    names = references(node)
                inputs = {name: found[use] for name, use in zip(names, step.uses, strict=True)}
                is_combination = step.kind == "opaque" and step.what is not None
                found[number] = combine(node, step.what, inputs) if is_combination else node(inputs)
                del inputs
            for gone in dropped:
                found.pop(gone, None)
        return found[part.result]


for _function in (Program.run, Program._run):
    leave_out_of_tracebacks(_function)


def _is_plain(value: Any) -> bool:
    kind = type(value)
    return kind is np.ndarray or kind in _PLAIN or isinstance(value, np.generic)


def _groups(steps: tuple[TaskStep, ...]) -> list[int]:
    """Return, by step, the last step of its part."""
    users: dict[int, list[int]] = {}
    for number, step in enumerate(steps):
        for use in {*step.args, *step.uses}:
            users.setdefault(use, []).append(number)
    groups = list(range(len(steps)))
    for number in reversed(range(len(steps) - 1)):
        if steps[number].kind != "operation":
            continue
        by = users.get(number, [])
        found = {groups[user] for user in by}
        if len(found) == 1 and all(steps[user].kind != "opaque" for user in by):
            groups[number] = found.pop()
    return groups


def _with_ends(parts: list[_Part], result: int) -> list[_Part]:
    """Add the results that are not needed after each part."""
    last: dict[int, int] = {}
    for position, part in enumerate(parts):
        last.update(dict.fromkeys((*part.inputs, *part.referred), position))
    done: dict[int, list[int]] = {}
    for number, position in last.items():
        if number != result:
            done.setdefault(position, []).append(number)
    return [part._replace(done=tuple(done.get(n, ()))) for n, part in enumerate(parts)]


def _with_drops(part: _Part, steps: tuple[TaskStep, ...]) -> _Part:
    """Add the results that are not needed after each member: Dask releases them at once, too."""
    last = {use: member for member in part.members for use in (member, *steps[member].uses)}
    ended = {*part.members, *part.done} - {part.result}
    return part._replace(
        dropped=tuple(
            tuple(use for use in ended if last.get(use) == member) for member in part.members
        )
    )
