"""Hand the computations of a program to a function, instead of to a scheduler."""

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

#: What is about to be computed, and whether the results stay on the workers.
Observer = Callable[[list[Any], bool], None]


class _Scheduler:
    """What Dask gets for a scheduler: tells the observer, then computes with local threads."""

    def __init__(self, collections: list[Any] | None, session: _Session) -> None:
        self._collections = collections
        self._session = session

    def __call__(self, graph: Any, keys: Any, **kwargs: Any) -> Any:
        collections = self._collections
        if collections is None:  # a bare graph, from those who compute "as if a collection"
            tasks = graph if isinstance(graph, Mapping) else graph.__dask_graph__()
            collections = [PersistedGraph(tasks, flatten(keys), None)]
        self._session.tell(collections, False)
        with self._session.computing():
            return dask.threaded.get(graph, keys)

    def persist(self, collections: Iterable[Any], **kwargs: Any) -> Any:
        """Compute what stays; Dask looks for this method."""
        self._session.tell(list(collections), True)
        with self._session.computing():
            return dask.persist(*collections)


class _Session:
    """Knows which computations are the program's own."""

    def __init__(self, observe: Observer) -> None:
        self._observe = observe
        self._thread = threading.local()
        self._running = 0
        self._lock = threading.Lock()

    @property
    def is_inner(self) -> bool:
        """Whether a computation that begins now is part of another, or of the observer."""
        return self._running > 0 or getattr(self._thread, "observing", False)

    def tell(self, collections: list[Any], persist: bool) -> None:
        self._thread.observing = True
        try:
            self._observe(collections, persist)
        finally:
            self._thread.observing = False

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        with self._lock:
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1


@contextlib.contextmanager
def intercept_computations(observe: Observer) -> Iterator[None]:
    """Call a function before every computation in this context, whatever its scheduler.

    Computations run with local threads. Those inside of others, and those that the observer
    itself causes, are not intercept_computations.

    Parameters
    ----------
    observe
        Called with the collections, and whether their results stay where they are. What it
        raises comes out of the program's call.
    """
    before = dask.base.get_scheduler
    session = _Session(observe)

    def get_scheduler(
        get: Any = None, scheduler: Any = None, collections: Any = None, cls: Any = None
    ) -> Any:
        if session.is_inner:
            return dask.threaded.get
        return _Scheduler(None if collections is None else list(collections), session)

    dask.base.get_scheduler = get_scheduler
    try:
        yield
    finally:
        dask.base.get_scheduler = before
        # Modules that were imported meanwhile may have taken the name with them.
        for module in list(sys.modules.values()):
            if getattr(module, "get_scheduler", None) is get_scheduler:
                module.get_scheduler = before  # type: ignore[attr-defined]  # looked at above
