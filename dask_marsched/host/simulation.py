"""The parts of the digital twin that touch the inside of ``distributed``.

The scheduler and the workers' state machines run here as they are; what is replaced is the
clock, the event loop's timers, the http server and the streams. Nothing here changes how a
scheduler or worker outside the simulation behaves, even in the same process: the clock differs
only in the thread that simulates.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, Protocol

import dask
import dask.order
import distributed.metrics
import distributed.scheduler
import distributed.worker_state_machine
from dask.base import collections_to_expr
from dask.core import flatten
from distributed.core import Status
from distributed.scheduler import ClientState, Scheduler
from tornado.ioloop import IOLoop

_CLIENT = "twin-client"
#: Modules whose reading of the clock decides something or is recorded.
_CLOCKED = (
    "distributed.scheduler",
    "distributed.worker_state_machine",
    "distributed.stealing",
    "distributed.active_memory_manager",
    "distributed.spans",
)


class Timer(Protocol):
    """What the twin's event queue offers to the event loop."""

    def time(self) -> float:
        """Return the virtual time, in seconds."""

    def at(self, time: float, action: Callable[..., object], *args: Any, daemon: bool) -> Any:
        """Call ``action`` at a virtual time."""


class TwinLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers live in the twin's event queue.

    Callbacks that are due now run as in any loop, when the simulation gives way to them with
    :meth:`settle`; callbacks with a delay run when virtual time has come that far.
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._calls = 0
        super().__init__()

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self._timer.time()

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        """Count the call, so that :meth:`settle` knows whether there is anything to run."""
        self._calls += 1
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Put the callback into the event queue."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)

        def due() -> None:
            if not handle.cancelled():
                self.call_soon(callback, *args, context=context)

        self._timer.at(when, due, daemon=True)
        return handle

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Put the callback into the event queue."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def calls(self) -> int:
        """Return how many callbacks were ever made due."""
        return self._calls


async def settle(loop: TwinLoop, seen: int) -> int:
    """Run the callbacks made due since ``seen``, and those that they make due; return the count.

    Parameters
    ----------
    loop
        The running loop.
    seen
        What the last call returned.
    """
    while loop.calls() != seen:
        seen = loop.calls() + 1  # the one that wakes this coroutine up again
        await asyncio.sleep(0)
    return seen


class _TwinTaskState(distributed.worker_state_machine.TaskState):
    """A worker's task that hashes by key, so that sets of tasks iterate in the same order.

    Equality stays identity. Objects made by a real worker of the same process while the
    simulation runs are as good as any.
    """

    __slots__ = ("_hash",)

    def __post_init__(self) -> None:
        self._hash = hash(self.key)
        self.prefix = _key_split(self.key)

    def __hash__(self) -> int:
        return self._hash


_key_split = functools.lru_cache(100_000)(distributed.worker_state_machine.key_split)


class _NoVersions:
    """Stands in for ``distributed.versions``: all workers have the versions of this process."""

    @staticmethod
    def get_versions() -> dict[str, Any]:
        return {}

    @staticmethod
    def error_message(*args: Any, **kwargs: Any) -> dict[str, Any]:
        return {}


def _clocked_modules() -> list[ModuleType]:
    ours = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("dask_marsched.") and module is not None
    ]
    return [sys.modules[name] for name in _CLOCKED if name in sys.modules] + ours


@contextlib.contextmanager
def virtual_time(now: Callable[[], float]) -> Iterator[None]:
    """Make ``now`` the clock of distributed and of our plugin, in the calling thread only.

    Parameters
    ----------
    now
        Returns the virtual time, in seconds.
    """
    thread = threading.get_ident()

    def replaced(real: Callable[[], float]) -> Callable[[], float]:
        def clock() -> float:
            return now() if threading.get_ident() == thread else real()

        return clock

    clocks = {
        id(real): (real, replaced(real))
        for real in (distributed.metrics.time, distributed.metrics.monotonic)
    }
    undo: list[tuple[ModuleType, str, Any]] = []

    def patch(module: ModuleType, name: str, value: Any) -> None:
        undo.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    try:
        for module in _clocked_modules():
            for name in ("time", "monotonic"):
                found = clocks.get(id(vars(module).get(name)))
                if found is not None:
                    patch(module, name, found[1])
        patch(distributed.worker_state_machine, "TaskState", _TwinTaskState)
        patch(distributed.scheduler, "version_module", _NoVersions)
        yield
    finally:
        for module, name, value in reversed(undo):
            setattr(module, name, value)


class _NullComm:
    """The connection over which a worker registers: what is written to it is dropped."""

    name = "twin"

    async def write(self, msg: Any, **kwargs: Any) -> int:
        return 0

    def closed(self) -> bool:
        return False


class _ClientComm:
    """The scheduler's stream to the client: hands every message to one function."""

    def __init__(self, receive: Callable[[dict[str, Any]], None]) -> None:
        self._receive = receive

    def send(self, *messages: dict[str, Any]) -> None:
        for message in messages:
            self._receive(message)

    def closed(self) -> bool:
        return False

    def abort(self) -> None:
        pass

    async def close(self) -> None:
        pass


class TwinScheduler(Scheduler):
    """The real scheduler, without http server and without sockets.

    Parameters
    ----------
    open_stream
        Called with a worker's address; returns the stream of messages to that worker.
    to_client
        Receives the messages to the client.
    """

    def __init__(
        self,
        open_stream: Callable[[str], Any],
        to_client: Callable[[dict[str, Any]], None],
        **kwargs: Any,
    ) -> None:
        super().__init__(dashboard=False, dashboard_address=None, **kwargs)
        self._open_stream = open_stream
        self._address = "tcp://10.255.255.254:8786"
        self.status = Status.running
        self.clients[_CLIENT] = ClientState(_CLIENT, versions={})
        self.client_comms[_CLIENT] = _ClientComm(to_client)  # type: ignore[assignment]

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        """Start nothing; only the attributes exist."""
        self.http_application = None
        self.http_server = None

    async def handle_worker(self, comm: Any, worker: str) -> None:
        """Connect the stream to the worker and return, instead of reading from a socket."""
        waiting = self.stream_comms[worker]
        self.stream_comms[worker] = stream = self._open_stream(worker)
        stream.send(*waiting.buffer)

    async def start_twin(self, plugins: Iterable[Any]) -> None:
        """Add and start the plugins, and the extensions' periodic work."""
        for name, plugin in list(self.plugins.items()):
            if name != "shuffle":
                await plugin.start(self)
        for plugin in plugins:
            await self.register_scheduler_plugin(plugin, idempotent=False)

    async def join(self, address: str, index: int, nthreads: int, memory_limit: int) -> None:
        """Register a worker, as its first message does on a real cluster."""
        await self.add_worker(
            comm=_NullComm(),  # type: ignore[arg-type]
            address=address,
            status="running",
            server_id=index,  # type: ignore[arg-type]  # an int hashes alike in every process
            nthreads=nthreads,
            name=index,  # type: ignore[arg-type]
            resolve_address=False,
            now=distributed.scheduler.time(),
            resources={},
            memory_limit=memory_limit,
            metrics=worker_metrics(0, parse_bandwidth_default(), {}),
            services={},
            local_directory="",
            versions={},
            nanny="",
            extra={},
            stimulus_id=f"worker-connect-{address}",
        )

    def submit(self, expr: Any, keys: set[Any]) -> int:
        """Do to an expression what ``Scheduler.update_graph`` does; return the number of tasks.

        Parameters
        ----------
        expr
            The optimized expression, as a client would send it.
        keys
            The keys that the client wants.
        """
        dsk, annotations = materialize(expr, keys, validate=bool(self.validate))
        if self._find_lost_dependencies(dsk, keys):
            raise ValueError(
                "the graph depends on results that it does not contain (persisted on a cluster?)"
            )
        self._create_taskstate_from_graph(
            dsk=dsk,
            client=_CLIENT,
            keys=set(keys),
            ordered=dask.order.order(dsk=dsk) if dsk else {},
            submitting_task=None,
            user_priority=0,
            actors=None,
            fifo_timeout=60.0,
            code=(),
            span_metadata={"collections": []},
            annotations_by_type=annotations,
            global_annotations=dict(dask.get_annotations()),
            start=distributed.scheduler.time(),
            stimulus_id=f"update-graph-{distributed.scheduler.time()}",
        )
        return len(dsk)

    def receive(self, worker: str, messages: list[dict[str, Any]]) -> None:
        """Handle a batch of messages of a worker."""
        for message in messages:
            op = message.pop("op")
            self.stream_handlers[op](worker=worker, **message)

    async def finish(self) -> None:
        """Stop everything that this scheduler started."""
        for plugin in list(self.plugins.values()):
            close = getattr(plugin, "close", None)
            if close is not None:
                await close()
        for callback in self.periodic_callbacks.values():
            callback.stop()
        self.periodic_callbacks.clear()
        self.stream_comms.clear()
        self.client_comms.clear()
        self.status = Status.closed
        await super(Scheduler, self).close()
        Scheduler._instances.discard(self)


def parse_bandwidth_default() -> float:
    """Return the bandwidth that distributed assumes before it has measured one, in bytes/s."""
    return float(dask.utils.parse_bytes(dask.config.get("distributed.scheduler.bandwidth")))


def worker_metrics(
    managed: int, bandwidth: float, peers: Mapping[str, tuple[float, int]]
) -> dict[str, Any]:
    """Return the metrics of a heartbeat of a worker without unmanaged memory.

    Parameters
    ----------
    managed
        Bytes of results held.
    bandwidth
        Bytes per second as measured by the worker.
    peers
        Sum of the measured bandwidths and their count, by peer address.
    """
    return {
        "task_counts": {},
        "bandwidth": {"total": bandwidth, "workers": dict(peers), "types": {}},
        "digests_total_since_heartbeat": {},
        "managed_bytes": managed,
        "spilled_bytes": {"memory": 0, "disk": 0},
        "transfer": {
            "incoming_bytes": 0,
            "incoming_count": 0,
            "incoming_count_total": 0,
            "outgoing_bytes": 0,
            "outgoing_count": 0,
            "outgoing_count_total": 0,
        },
        "event_loop_interval": 0.02,
        "cpu": 0.0,
        "memory": managed,
        "time": 0.0,
        "host_net_io": {"read_bps": 0.0, "write_bps": 0.0},
        "host_disk_io": {"read_bps": 0.0, "write_bps": 0.0},
        "num_fds": 0,
    }


def expression(collections: list[Any]) -> tuple[Any, set[Any]]:
    """Return the optimized expression that ``Client.compute`` would send, and its output keys.

    Raises
    ------
    TypeError
        If an item is not a Dask collection.
    """
    from dask._expr import FinalizeCompute

    for item in collections:
        if not dask.is_dask_collection(item):
            raise TypeError(f"not a Dask collection: {type(item).__name__}")
    expr = FinalizeCompute(collections_to_expr(collections)).optimize()
    return expr, set(flatten(expr.__dask_keys__()))


def materialize(
    expr: Any, keys: set[Any], *, validate: bool = False
) -> tuple[dict[Any, Any], dict[str, dict[Any, Any]]]:
    """Return the tasks of an expression and their annotations, as the scheduler does."""
    dsk, annotations = distributed.scheduler._materialize_graph(expr=expr, validate=validate)
    if isinstance(expr, distributed.scheduler.LLGExpr):
        dsk = distributed.scheduler._cull(dsk, keys)
    return dsk, annotations


def use_virtual_clock(loop: IOLoop, now: Callable[[], float]) -> None:
    """Let tornado's timers (``PeriodicCallback``) count in virtual time."""
    loop.time = now  # type: ignore[method-assign]


@contextlib.contextmanager
def collected_errors() -> Iterator[list[logging.LogRecord]]:
    """Collect what distributed logs as exceptions (of plugin hooks too) and silence the rest."""
    records: list[logging.LogRecord] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info:
                records.append(record)

    handler = Collect(level=logging.ERROR)
    loggers = [
        logging.getLogger(name)
        for name in ("distributed.scheduler", "distributed.core", "distributed.stealing",
                     "distributed.utils", "distributed.worker.state_machine")
    ]  # fmt: skip
    before = [(logger, logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
        logger.propagate = False
        logger.addHandler(handler)
    try:
        yield records
    finally:
        for logger, level, propagate in before:
            logger.setLevel(level)
            logger.propagate = propagate
            logger.removeHandler(handler)
