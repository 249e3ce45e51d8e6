"""Gives the event loop and the clocks of ``distributed`` virtual time, in one thread only."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol

import distributed.metrics
import distributed.scheduler
import distributed.worker_state_machine
from tornado.ioloop import IOLoop

from dask_marsched.host.replacements import Replacements

#: Modules that decide by the clock or record it.
_CLOCKED = (
    "distributed.metrics",  # for modules that are imported only now
    "distributed.scheduler",
    "distributed.worker_state_machine",
    "distributed.stealing",
    "distributed.active_memory_manager",
    "distributed.spans",
)


#: Virtual seconds of work in a thread: a search for plans of some hundred operands takes as long.
THREAD = 0.05


class Timer(Protocol):
    """The event queue, as the event loop sees it."""

    def time(self) -> float:
        """Return the virtual time, in seconds."""

    def at(self, time: float, action: Callable[..., object], *args: Any, daemon: bool) -> Any:
        """Call ``action`` at a virtual time."""


class TwinLoop(asyncio.SelectorEventLoop):
    """An event loop with timers in the simulation's `EventQueue`; `settle` runs due callbacks."""

    def __init__(self, queue: Timer) -> None:
        self._queue = queue
        #: How many callbacks were ever made due.
        self.calls = 0
        super().__init__()

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self._queue.time()

    def call_soon(  # type: ignore[override]  # no type variables
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """Count the call, so that `settle` knows whether there is anything to run."""
        self.calls += 1
        return super().call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]  # no type variables
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Put the callback into the event queue."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)

        def due() -> None:
            if not handle.cancelled():
                self.call_soon(callback, *args, context=context)

        self._queue.at(when, due, daemon=True)
        return handle

    def run_in_executor(  # type: ignore[override]  # no type variables
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        """Run a function at once; its result arrives `THREAD` later."""
        future = self.create_future()
        try:
            deliver = functools.partial(_deliver, future, future.set_result, func(*args))
        except Exception as error:
            deliver = functools.partial(_deliver, future, future.set_exception, error)
        self.call_later(THREAD, deliver)
        return future


def _deliver(future: asyncio.Future[Any], set_result: Callable[[Any], None], result: Any) -> None:
    if not future.cancelled():
        set_result(result)


async def settle(loop: TwinLoop, seen: int) -> int:
    """Run the callbacks made due since ``seen``, the result of the last call, and their successors.

    Return the number of callbacks that were ever made due.
    """
    while loop.calls != seen:
        seen = loop.calls + 1  # the one that wakes this coroutine up again
        await asyncio.sleep(0)
    return seen


class _TwinTaskState(distributed.worker_state_machine.TaskState):
    """A worker's task that hashes by key, so that sets of tasks iterate in the same order.

    Equality stays identity. A real worker of the same process may use it as well.
    """

    __slots__ = ("_hash",)

    def __post_init__(self) -> None:
        self._hash = hash(self.key)
        self.prefix = _key_split(self.key)

    def __hash__(self) -> int:
        return self._hash


_key_split = functools.lru_cache(100_000)(distributed.worker_state_machine.key_split)


#: Replaces ``distributed.versions``: all workers have the versions of this process.
_NO_VERSIONS = SimpleNamespace(get_versions=dict, error_message=lambda *args, **kwargs: {})


def _clock(real: Callable[[], float], virtual: threading.local) -> Callable[[], float]:
    """Return a clock that reads virtual time in threads that simulate, real time elsewhere."""

    def read() -> float:
        now: Callable[[], float] | None = getattr(virtual, "now", None)
        return real() if now is None else now()

    return read


_virtual = threading.local()
_CLOCKS = {
    "time": (distributed.metrics.time, _clock(distributed.metrics.time, _virtual)),
    "monotonic": (distributed.metrics.monotonic, _clock(distributed.metrics.monotonic, _virtual)),
}


def _clocked_modules() -> list[ModuleType]:
    ours = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("dask_marsched.") and module is not None
    ]
    return [sys.modules[name] for name in _CLOCKED if name in sys.modules] + ours


@contextlib.contextmanager
def virtual_time(now: Callable[[], float]) -> Iterator[None]:
    """Make ``now`` the clock of distributed and of our plugin in the calling thread."""
    with _patching, Replacements() as replaced:
        for module in _clocked_modules():
            for name, (real, clock) in _CLOCKS.items():
                if vars(module).get(name) is real:
                    replaced.attribute(module, name, clock)
        replaced.attribute(distributed.worker_state_machine, "TaskState", _TwinTaskState)
        replaced.attribute(distributed.scheduler, "version_module", _NO_VERSIONS)
        _virtual.now = now
        try:
            yield
        finally:
            del _virtual.now


#: One simulation at a time in a process: two would undo each other's patches in the wrong order.
_patching = threading.Lock()


def use_virtual_clock(loop: IOLoop, now: Callable[[], float]) -> None:
    """Let tornado's timers (``PeriodicCallback``) use virtual time."""
    loop.time = now  # type: ignore[method-assign]  # the way to set a clock
