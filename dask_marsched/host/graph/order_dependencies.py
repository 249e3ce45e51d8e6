"""Lets `dask.order.order` look up dependencies at the speed of a dict, and frees what it leaves.

Dask's own mapping is written in Python, and ordering looks a task's dependencies up ten times. Two
sets a task are left in a cycle of functions: the collector would hold up all threads to find them.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import dask.order
from dask._task_spec import DependenciesMapping
from dask.core import get_dependencies, reverse_dict

from dask_marsched.host.replacements import Replacements


class Dependencies(dict[Any, Any]):
    """Replaces `DependenciesMapping`: keys are those of a graph, from which tasks are removed.

    The dict holds what was looked up since the last removal.
    """

    __slots__ = ("_dsk", "_removed")

    def __init__(self, dsk: Any) -> None:
        self._dsk = dsk
        self._removed: set[Any] = set()

    def __missing__(self, key: Any) -> Any:
        node = self._dsk[key]
        try:
            found = node.dependencies
        except AttributeError:
            found = get_dependencies(self._dsk, task=node)
        if self._removed:
            found = found - self._removed
        self[key] = found
        return found

    def __delitem__(self, key: Any) -> None:
        self.clear()
        self._removed.add(key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dsk)

    def __len__(self) -> int:
        return len(self._dsk)

    def __contains__(self, key: object) -> bool:
        return key in self._dsk

    # The methods of a dict would see only the keys that were looked up so far.
    get, keys = Mapping.get, Mapping.keys  # type: ignore[assignment]  # other types than a dict's
    values, items = Mapping.values, Mapping.items  # type: ignore[assignment]  # as above


#: The mappings to sets that an order in this thread has made, while they are to be freed.
_left = threading.local()


class _Sets(defaultdict[Any, Any]):
    """Replaces `defaultdict` in `dask.order`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        _note(self)


def _reverse_dict(d: Any) -> Any:
    """Replace `dask.core.reverse_dict` in `dask.order`."""
    return _note(reverse_dict(d))


def _note(made: Any) -> Any:
    made_here = getattr(_left, "made", None)
    if made_here is not None:
        made_here.append(made)
    return made


@contextlib.contextmanager
def sets_freed() -> Iterator[None]:
    """Free the sets that an order in this context leaves."""
    made: list[Any] = []
    _left.made = made
    try:
        yield
    finally:
        _left.made = None
        for mapping in made:
            while mapping:  # other threads may go on in between
                mapping.popitem()


#: Names that are replaced in `dask.order`: Dask's objects, and ours.
_REPLACED = {
    "DependenciesMapping": (DependenciesMapping, Dependencies),
    "defaultdict": (defaultdict, _Sets),
    "reverse_dict": (reverse_dict, _reverse_dict),
}


def install(undo: Replacements) -> None:
    """Have Dask order with these mappings in this process, if it makes its own as expected."""
    for name, (own, ours) in _REPLACED.items():
        if getattr(dask.order, name, None) is own:
            undo.attribute(dask.order, name, ours)
