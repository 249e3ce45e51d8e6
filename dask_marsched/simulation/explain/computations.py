"""Calls a function before every computation of a program, and computes with local threads."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import dask
import dask.base
import dask.threaded
from dask.core import flatten

from dask_marsched.simulation.costs.persisted import PersistedGraph

#: Called with the collections, and whether their results stay on the workers.
BeforeCompute = Callable[[list[Any], bool], None]


class _Interceptor:
    """Calls the function for a program's own computations, but not for those inside of others."""

    def __init__(self, before_compute: BeforeCompute) -> None:
        self._before_compute = before_compute
        self._thread = threading.local()
        self._running = 0
        self._lock = threading.Lock()

    @property
    def is_inner(self) -> bool:
        """Whether a computation that begins now is part of another, or of the function."""
        return self._running > 0 or getattr(self._thread, "calling", False)

    @contextlib.contextmanager
    def computing(self, collections: list[Any], persist: bool) -> Iterator[None]:
        """Call the function, then let the block compute."""
        self._thread.calling = True
        try:
            self._before_compute(collections, persist)
        finally:
            self._thread.calling = False
        with self._lock:
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1


class _Scheduler:
    """The scheduler that Dask uses for one computation."""

    def __init__(self, collections: list[Any] | None, interceptor: _Interceptor) -> None:
        self._collections = collections
        self._interceptor = interceptor

    def __call__(self, graph: Any, keys: Any, **kwargs: Any) -> Any:
        collections = self._collections
        if collections is None:  # a bare graph, as from `compute_as_if_collection`
            tasks = graph if isinstance(graph, Mapping) else graph.__dask_graph__()
            collections = [PersistedGraph(tasks, flatten(keys), None)]
        with self._interceptor.computing(collections, False):
            return dask.threaded.get(graph, keys)

    def persist(self, collections: Iterable[Any], **kwargs: Any) -> Any:
        """Persist with local threads; ``dask.persist`` looks for this method."""
        with self._interceptor.computing(list(collections), True):
            return dask.persist(*collections)


@contextlib.contextmanager
def intercept_computations(before_compute: BeforeCompute) -> Iterator[None]:
    """Call a function, which may raise, before every computation in this context."""
    original = dask.base.get_scheduler
    interceptor = _Interceptor(before_compute)

    def get_scheduler(
        get: Any = None, scheduler: Any = None, collections: Any = None, cls: Any = None
    ) -> Any:
        if interceptor.is_inner:
            return dask.threaded.get
        return _Scheduler(None if collections is None else list(collections), interceptor)

    dask.base.get_scheduler = get_scheduler
    try:
        yield
    finally:
        dask.base.get_scheduler = original
        # Modules imported in the meantime may have taken over the name.
        for module in list(sys.modules.values()):
            if getattr(module, "get_scheduler", None) is get_scheduler:
                module.get_scheduler = original  # type: ignore[attr-defined]  # looked at above
