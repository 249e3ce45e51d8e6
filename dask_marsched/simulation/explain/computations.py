"""Calls a function before every computation of a program, and computes with local threads."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import dask
import dask.base
import dask.threaded
from dask.core import flatten

from dask_marsched.simulation.costs.persisted import PersistedGraph

#: Called with the collections, and whether their results stay on the workers.
BeforeCompute = Callable[[list[Any], bool], None]
Computing = Callable[[list[Any], bool], AbstractContextManager[None]]


class _Scheduler:
    """The scheduler that Dask uses for one computation."""

    def __init__(
        self,
        collections: list[Any] | None,
        computing: Computing,
    ) -> None:
        self._collections = collections
        self._computing = computing

    def __call__(self, graph: Any, keys: Any, **kwargs: Any) -> Any:
        collections = self._collections
        if collections is None:  # a bare graph, as from `compute_as_if_collection`
            tasks = graph if isinstance(graph, Mapping) else graph.__dask_graph__()
            collections = [PersistedGraph(tasks, flatten(keys), None)]
        with self._computing(collections, False):
            return dask.threaded.get(graph, keys)

    def persist(self, collections: Iterable[Any], **kwargs: Any) -> Any:
        """Persist with local threads; ``dask.persist`` looks for this method."""
        with self._computing(list(collections), True):
            return dask.persist(*collections)


@contextlib.contextmanager
def intercept_computations(before_compute: BeforeCompute) -> Iterator[None]:
    """Call a function, which may raise, before every computation in this context.

    Computations that are part of others, or of the function, are not intercepted.
    """
    original = dask.base.get_scheduler
    thread, lock = threading.local(), threading.Lock()
    running = 0

    @contextlib.contextmanager
    def computing(collections: list[Any], persist: bool) -> Iterator[None]:
        nonlocal running
        thread.calling = True
        try:
            before_compute(collections, persist)
        finally:
            thread.calling = False
        with lock:
            running += 1
        try:
            yield
        finally:
            with lock:
                running -= 1

    def get_scheduler(
        get: Any = None, scheduler: Any = None, collections: Any = None, cls: Any = None
    ) -> Any:
        if running or getattr(thread, "calling", False):
            return dask.threaded.get
        return _Scheduler(None if collections is None else list(collections), computing)

    dask.base.get_scheduler = get_scheduler
    try:
        yield
    finally:
        dask.base.get_scheduler = original
        # Modules imported in the meantime may have taken over the name.
        for module in list(sys.modules.values()):
            if getattr(module, "get_scheduler", None) is get_scheduler:
                module.get_scheduler = original  # type: ignore[attr-defined]  # looked at above
