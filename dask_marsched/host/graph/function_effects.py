"""Detects functions whose code shows that they depend on more than their arguments.

They wait for other tasks, submit tasks, secede or ask for their key. Such tasks are not fused and
not run twice, and simulations name them. Whether any other task may be rerun or interrupted is
decided by `task_effects`.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

from dask._task_spec import Task, _execute_subgraph

from dask_marsched.host.graph.array_layers import innermost

#: Names of functions with side effects, and how a simulation treats these.
_SIDE_EFFECTS = {
    "secede": "tasks that secede: they keep their thread",
    "rejoin": "tasks that secede: they keep their thread",
    "worker_client": "tasks that submit tasks (worker_client): they submit none",
    "get_current_task": "tasks that ask for their key (get_current_task): as all others",
    "get_client": "tasks that use a client (get_client): they submit none",
}
#: Names that count only if they are classes of ``distributed``.
_COORDINATION = {"Lock", "Semaphore", "MultiLock", "Event", "Queue", "Variable", "Pub", "Sub"}


def called_functions(node: Any) -> Iterator[Any]:
    """Yield the functions that a task calls, including those of the steps of a fused task."""
    if isinstance(node, Task):
        if node.func is _execute_subgraph:
            for inner in node.args[0].values():
                yield from called_functions(inner)
        else:
            yield node.func


def describe_effects(function: Any) -> Iterator[str]:
    """Yield the side effects of a function, and how a simulation treats them."""
    function = innermost(function)
    code = getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType):
        return
    if code.co_flags & 0x80:  # inspect.CO_COROUTINE
        yield "coroutines: they take a thread like other tasks"
    if (function.__module__ or "").startswith(("dask.", "distributed.")):
        return
    names = _names(code)
    for name in names:
        if name in _SIDE_EFFECTS:
            yield _SIDE_EFFECTS[name]
        elif name in _COORDINATION:
            value = function.__globals__.get(name)
            # imported in the function, or an attribute of the module
            is_inside = value is None and any(n.endswith("distributed") for n in names)
            if is_inside or getattr(value, "__module__", "").startswith("distributed."):
                yield f"tasks that wait for each other (distributed.{name}): they do not wait"


def within_reach(function: Any, inner: Any, global_too: bool) -> Iterator[Any]:
    """Yield what a function may call or use besides its arguments.

    That is what is bound to it, what it encloses, what a callable object holds and, if
    ``global_too``, the globals and the methods that its code names, and the methods of a class.
    `inner` is what partials wrap.
    """
    while function is not inner:
        yield from (getattr(function, "args", ()), getattr(function, "keywords", None))
        function = getattr(function, "func", inner)
    if isinstance(inner, types.FunctionType):
        yield from (inner.__defaults__, inner.__kwdefaults__)
        for cell in inner.__closure__ or ():
            with contextlib.suppress(ValueError):  # empty
                yield cell.cell_contents
        if global_too:
            named = [inner.__globals__.get(name) for name in _names(inner.__code__)]
            yield from sorted(named, key=lambda value: isinstance(value, type))  # classes last
    elif isinstance(inner, types.MethodType):
        yield from (inner.__func__, getattr(inner.__self__, "__dict__", None))
        if global_too:
            yield from _other_methods(inner.__self__, inner.__func__)
    elif isinstance(inner, type):
        if global_too and not _is_installed(inner.__module__.partition(".")[0]):
            yield from (value for value in vars(inner).values() if callable(value))
    else:
        if type(inner).__module__.startswith(("toolz.", "cytoolz.")):  # what `compose` has made
            yield from (getattr(inner, name, None) for name in ("first", "funcs"))
        yield getattr(inner, "__dict__", None)
        if global_too:
            yield type(inner).__call__
            yield from _other_methods(inner, type(inner).__call__)


@functools.lru_cache(256)
def _is_installed(package: str) -> bool:
    """Whether a package is Python's own or was installed, so that it is no user's code."""
    if package in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def _other_methods(owner: Any, method: Any) -> Iterator[Any]:
    """Yield the methods of an object that one of its methods may call: those that it names."""
    code = getattr(method, "__code__", None)
    if isinstance(code, types.CodeType):
        for name in _names(code):
            yield getattr(type(owner), name, None)


@functools.lru_cache(4096)
def _names(code: types.CodeType) -> tuple[str, ...]:
    names = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(dict.fromkeys(_names(constant)))
    return tuple(names)
