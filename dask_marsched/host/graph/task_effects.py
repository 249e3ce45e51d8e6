"""What a task does besides computing: decides what may be run again, and what may be stopped.

Second runs, retries and interrupts ask here. A task is known by the functions that it calls: those
of NumPy, pandas, Dask and their like compute or read, unless their names say that they write. A
function of the user may do anything, so that its task is left as stock Dask leaves it.
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

#: Packages whose functions compute or read, but for those below.
_LIBRARIES = frozenset(
    {
        "_operator",
        "bottleneck",
        "cytoolz",
        "dask",
        "flox",
        "functools",
        "itertools",
        "math",
        "numexpr",
        "numpy",
        "numpy_groupies",
        "operator",
        "pandas",
        "pyarrow",
        "scipy",
        "sparse",
        "tlz",
        "toolz",
        "xarray",
    }
)
_BUILTINS = frozenset({
    "abs", "all", "any", "bool", "bytes", "complex", "dict", "divmod", "enumerate", "filter",
    "float", "frozenset", "getattr", "int", "isinstance", "len", "list", "map", "max", "min",
    "object", "pow", "range", "reversed", "round", "set", "slice", "sorted", "str", "sum",
    "tuple", "type", "zip",
})  # fmt: skip
#: Beginnings of words in names of functions that write somewhere, or hold something.
_WRITES = (
    *("delet", "disk", "dump", "lock", "mkdir", "partd", "remov", "sav", "send", "stor"),
    *("tofile", "unlink", "upload", "writ"),
)
#: Whole words of the same kind: they change an array, submit tasks, or append to a file of a bag.
_PUTS = frozenset({"copyto", "place", "put", "putmask", "compute", "persist", "partition"})
#: What `to_...` may be followed by where nothing is written.
_CONVERTED_TO = frozenset({
    "array", "arrow", "container", "datetime", "dense", "dict", "frame", "list", "numeric",
    "numpy", "pandas", "period", "string", "timedelta", "timestamp",
})  # fmt: skip
#: Beginnings of words in names of functions that read from outside.
_READS = ("fetch", "fromfile", "genfrom", "getter", "load", "memmap", "open", "read")
#: Modules of which the same is true.
_READING = (
    *("dask.array.image", "dask.bag.avro", "dask.bag.text", "dask.bytes", "dask.dataframe.io"),
    *("dask.dataframe.dask_expr.io", "pyarrow.dataset", "pyarrow.fs", "xarray.backends"),
)
#: These call what they are given first.
_CALLERS = frozenset({"apply", "_pass_extra_kwargs"})
#: Of `operator`: they change their argument.
_IN_PLACE = frozenset({
    "delitem", "iadd", "iand", "iconcat", "ifloordiv", "ilshift", "imatmul", "imod", "imul",
    "ior", "ipow", "irshift", "isub", "itruediv", "ixor", "setitem",
})  # fmt: skip
#: Values that are looked at in a task. Those with more than that hold data, or hide something.
_MOST = 2000
#: Types of values that call nothing.
_PLAIN = (
    *(str, bytes, int, float, complex, type(None), slice),
    *(np.ndarray, np.generic, TaskRef, Alias),
)
_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


class Effects(enum.IntEnum):
    """What a task does besides computing its result.

    Attributes
    ----------
    UNKNOWN
        It may write, hold a lock or talk to a server: run once, and left to end.
    READS
        It reads from a store. It may be run again. It is left to end, since libraries that read
        hold locks and connections.
    NONE
        It may be run again, and stopped at any moment.
    """

    UNKNOWN = 0
    READS = 1
    NONE = 2


def effects(spec: Any, annotations: Mapping[str, Any] | None = None) -> Effects:
    """Return what a task does besides computing.

    Parameters
    ----------
    spec
        Its run spec.
    annotations
        Its annotations: by ``pure`` its user decides.
    """
    pure = (annotations or {}).get("pure")
    if pure is not None:
        return Effects.NONE if pure else Effects.UNKNOWN
    if spec is None:
        return Effects.UNKNOWN
    try:
        return _EffectsReader().value(spec)
    except RecursionError:
        return Effects.UNKNOWN


class _EffectsReader:
    """Reads one task: it looks at a bounded number of values."""

    def __init__(self) -> None:
        self._left = _MOST

    def value(self, value: Any) -> Effects:
        """Return what comes of a value in a task, if that calls all that can be called."""
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
        # A lock, an event, a client: it is there to reach out by it.
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
            return Effects.UNKNOWN  # of a function that another task returns nothing is known
        return self._all(task.func, *task.args, *task.kwargs.values())

    def _function(self, function: Any) -> Effects:
        if isinstance(function, functools.partial):
            return self._all(function.func, function.args, function.keywords)
        if isinstance(function, dask.utils.methodcaller):
            return _method(function.method)
        if isinstance(function, operator.methodcaller):
            made, given = cast("tuple[Any, tuple[Any, ...]]", function.__reduce__())
            if isinstance(made, functools.partial):
                given = (*made.args, *given, made.keywords)
            return min(_method(given[0]), self._all(*given[1:]))
        if isinstance(function, types.MethodType):
            return self._all(function.__func__, function.__self__)
        if isinstance(function, np.ufunc):
            return _ufunc(function)
        if isinstance(getattr(function, "__qualname__", None), str):
            return _named(function)
        # An object that can be called: what it holds, it may call.
        least = _named(type(function))
        held = [getattr(function, name, None) for name in ("first", "funcs", "_partial")]
        return min(least, self._all(*held, getattr(function, "__dict__", None)))


def _package(value: Any) -> str:
    return (getattr(type(value), "__module__", None) or "").partition(".")[0]


def _method(name: str) -> Effects:
    """Return what a method does, known by its name only: one of arrays or of frames."""
    pandas = sys.modules.get("pandas")
    frames = [getattr(pandas, of, None) for of in ("DataFrame", "Series", "Index")]
    known = any(hasattr(owner, name) for owner in (np.ndarray, *frames))
    return _words(name) if known else Effects.UNKNOWN


def _ufunc(function: np.ufunc) -> Effects:
    # Those made of a user's function bear its name.
    owners = (np, sys.modules.get("scipy.special"))
    known = any(getattr(owner, function.__name__, None) is function for owner in owners)
    return Effects.NONE if known else Effects.UNKNOWN


def _named(function: Any) -> Effects:
    """Return what a function or a class does, by where it comes from and its name."""
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
    """Return what the words of a name say."""
    words = [word.lower() for word in _WORD.findall(name)]
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word.startswith(_WRITES) or word in _PUTS:
            return Effects.UNKNOWN
        if word == "to" and after not in _CONVERTED_TO and after:
            return Effects.UNKNOWN
    reads = any(word.startswith(_READS) for word in words)
    return Effects.READS if reads else Effects.NONE
