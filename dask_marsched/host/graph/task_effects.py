"""Classifies tasks by their side effects, which decide whether they may be rerun or interrupted.

Functions of NumPy, pandas, Dask and similar libraries compute or read, unless their names suggest
that they write. A user's function may do anything, so that its task is treated as in stock Dask.
"""

from __future__ import annotations

import enum
import functools
import operator
import re
import sys
import types
from collections.abc import Mapping
from typing import Any, cast

import dask.utils
import numpy as np
from dask._task_spec import Alias, DataNode, Task, TaskRef

#: Packages whose functions compute or read, with the exceptions below.
_LIBRARIES = frozenset({
    "_operator", "bottleneck", "cytoolz", "dask", "flox", "functools", "itertools", "math",
    "numexpr", "numpy", "numpy_groupies", "operator", "pandas", "pyarrow", "scipy", "sparse",
    "tlz", "toolz", "xarray",
})  # fmt: skip
_BUILTINS = frozenset({
    "abs", "all", "any", "bool", "bytes", "complex", "dict", "divmod", "enumerate", "filter",
    "float", "frozenset", "int", "isinstance", "len", "list", "map", "max", "min",
    "object", "pow", "range", "reversed", "round", "set", "slice", "sorted", "str", "sum",
    "tuple", "type", "zip",
})  # fmt: skip
#: Beginnings of words in the names of functions that write or lock.
_WRITES = (
    *("delet", "disk", "dump", "lock", "mkdir", "partd", "remov", "sav", "send", "stor"),
    *("tofile", "unlink", "upload", "writ"),
)
#: Whole words in the names of functions that change arrays, submit tasks or append to files.
_PUTS = frozenset(
    {"copyto", "place", "put", "putmask", "compute", "persist", "partition", "fill", "pop"}
)
#: Words after ``to_`` in the names of functions that convert without writing.
_CONVERTED_TO = frozenset({
    "array", "arrow", "container", "datetime", "dense", "dict", "frame", "list", "numeric",
    "numpy", "pandas", "period", "string", "timedelta", "timestamp",
})  # fmt: skip
#: Beginnings of words in the names of functions that read from storage.
_READS = ("fetch", "fromfile", "genfrom", "getter", "load", "memmap", "open", "read")
#: Modules that read from storage.
_READING = (
    *("dask.array.image", "dask.bag.avro", "dask.bag.text", "dask.bytes", "dask.dataframe.io"),
    *("dask.dataframe.dask_expr.io", "pyarrow.dataset", "pyarrow.fs", "xarray.backends"),
)
#: Functions that call their first argument.
_CALLERS = frozenset({"apply", "_pass_extra_kwargs"})
#: Functions of `operator` that change their argument.
_IN_PLACE = frozenset({
    "delitem", "iadd", "iand", "iconcat", "ifloordiv", "ilshift", "imatmul", "imod", "imul",
    "ior", "ipow", "irshift", "isub", "itruediv", "ixor", "setitem",
})  # fmt: skip
#: Largest number of values that are examined in a task.
_MOST_VALUES = 2000
#: Types of values that cannot be called.
_PLAIN = (
    *(str, bytes, int, float, complex, type(None), slice),
    *(np.ndarray, np.generic, TaskRef, Alias),
)
_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


class Effects(enum.IntEnum):
    """Side effects of a task."""

    UNKNOWN = 0  #: It may write, hold a lock or talk to a server: never rerun or interrupted.
    #: It reads from storage: may be rerun. It may hold locks or connections: not interrupted.
    READS = 1
    NONE = 2  #: It may be rerun and interrupted at any moment.


def effects(spec: Any, annotations: Mapping[str, Any] | None = None) -> Effects:
    """Return the side effects of a task's run spec; an annotation ``pure`` takes precedence."""
    pure = (annotations or {}).get("pure")
    if pure is not None:
        return Effects.NONE if pure else Effects.UNKNOWN
    if spec is None:
        return Effects.UNKNOWN
    try:
        return _EffectsReader().value(spec)
    except Exception:  # a RecursionError, or whatever attributes of users' objects raise
        return Effects.UNKNOWN


class _EffectsReader:
    """Analyses one task; it examines a bounded number of values."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def value(self, value: Any) -> Effects:
        """Return the effects of a value in a task, assuming that everything callable is called."""
        if isinstance(value, _PLAIN):
            return Effects.NONE
        self._left -= 1
        if self._left < 0:
            return Effects.UNKNOWN
        if isinstance(value, Task):
            return self._task(value)
        if isinstance(value, DataNode):
            return self.value(value.value)
        if isinstance(value, dict):
            return self._all(*value.values())
        if isinstance(value, list | tuple | set | frozenset):
            return self._all(*value)
        if callable(value):
            return self._function(value)
        # Locks, events and clients are arguments only of tasks with side effects.
        return Effects.UNKNOWN if _package(value) == "distributed" else Effects.NONE

    def _all(self, *values: Any) -> Effects:
        least = Effects.NONE
        for value in values:
            least = min(least, self.value(value))
            if least is Effects.UNKNOWN:
                break
        return least

    def _task(self, task: Task) -> Effects:
        name = getattr(task.func, "__name__", "")
        if name in _CALLERS and task.args and isinstance(task.args[0], TaskRef):
            return Effects.UNKNOWN  # it calls a function that another task returns
        return self._all(task.func, *task.args, *task.kwargs.values())

    def _function(self, function: Any) -> Effects:
        if isinstance(function, functools.partial):
            return self._all(function.func, function.args, function.keywords)
        if isinstance(function, dask.utils.methodcaller):
            return method_effects(function)
        if isinstance(function, operator.methodcaller):
            return min(method_effects(function), self._all(*_given(function)[1:]))
        if isinstance(function, types.MethodType):
            return self._all(function.__func__, function.__self__)
        if isinstance(function, np.ufunc):
            return _ufunc(function)
        if isinstance(getattr(function, "__qualname__", None), str):
            return _named(function)
        # A callable object may call everything that it holds.
        least = _named(type(function))
        held = [getattr(function, name, None) for name in ("first", "funcs", "_partial")]
        return min(least, self._all(*held, getattr(function, "__dict__", None)))


def _package(value: Any) -> str:
    return (getattr(type(value), "__module__", None) or "").partition(".")[0]


def _given(caller: operator.methodcaller) -> tuple[Any, ...]:
    """Return the name of the method that it calls, and its arguments."""
    made, given = cast("tuple[Any, tuple[Any, ...]]", caller.__reduce__())
    if isinstance(made, functools.partial):
        given = (*made.args, *given, made.keywords)
    return given


def method_effects(caller: Any) -> Effects:
    """Return the effects of a method of arrays, frames or strings, by its name.

    ``caller`` is a `dask.utils.methodcaller` or `operator.methodcaller`.
    """
    name = caller.method if isinstance(caller, dask.utils.methodcaller) else _given(caller)[0]
    pandas = sys.modules.get("pandas")
    frames = [getattr(pandas, of, None) for of in ("DataFrame", "Series", "Index")]
    known = any(hasattr(owner, name) for owner in (np.ndarray, str, *frames))
    return _words(name) if known else Effects.UNKNOWN


def _ufunc(function: np.ufunc) -> Effects:
    # `numpy.frompyfunc` names a ufunc after the user's function.
    owners = (np, sys.modules.get("scipy.special"))
    known = any(getattr(owner, function.__name__, None) is function for owner in owners)
    return Effects.NONE if known else Effects.UNKNOWN


def _named(function: Any) -> Effects:
    """Return the effects of a function or class, by its module and name."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return Effects.UNKNOWN
    package = module.partition(".")[0]
    if package == "builtins":
        return Effects.NONE if name in _BUILTINS else Effects.UNKNOWN
    if package not in _LIBRARIES or (package in ("operator", "_operator") and name in _IN_PLACE):
        return Effects.UNKNOWN
    found = _words(name)
    return min(found, Effects.READS) if module.startswith(_READING) else found


def _words(name: str) -> Effects:
    """Return the effects that the words of a name suggest."""
    words = [word.lower() for word in _WORD.findall(name)]
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word.startswith(_WRITES) or word in _PUTS:
            return Effects.UNKNOWN
        if word == "to" and after not in _CONVERTED_TO and after:
            return Effects.UNKNOWN
    reads = any(word.startswith(_READS) for word in words)
    return Effects.READS if reads else Effects.NONE
