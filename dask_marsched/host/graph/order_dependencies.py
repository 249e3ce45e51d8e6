"""Lets `dask.order.order` look up dependencies at the speed of a dict.

Dask's own mapping is written in Python, and ordering looks a task's dependencies up ten times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask.order
from dask._task_spec import DependenciesMapping
from dask.core import get_dependencies


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

    def get(self, key: Any, default: Any = None) -> Any:
        """Return a task's dependencies, or the default if there is no such task."""
        return self[key] if key in self._dsk else default

    def keys(self) -> Any:
        """Return the tasks."""
        return self._dsk.keys()

    def values(self) -> Any:
        """Return the tasks' dependencies."""
        return [self[key] for key in self._dsk]

    def items(self) -> Any:
        """Return pairs of tasks and dependencies."""
        return [(key, self[key]) for key in self._dsk]


def install() -> None:
    """Have Dask order with these mappings in this process, if it makes its own as expected."""
    if getattr(dask.order, "DependenciesMapping", None) is DependenciesMapping:
        vars(dask.order)["DependenciesMapping"] = Dependencies


def uninstall() -> None:
    """Undo `install`."""
    if getattr(dask.order, "DependenciesMapping", None) is Dependencies:
        vars(dask.order)["DependenciesMapping"] = DependenciesMapping
