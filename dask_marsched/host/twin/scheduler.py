"""Runs the real scheduler in a simulation, without http server and sockets."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import dask
import dask._expr
import distributed.scheduler
from dask._task_spec import GraphNode
from dask.base import collections_to_expr
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed.core import Status
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.scheduler import ClientState, Scheduler

from dask_marsched.host.twin.graph import TwinGraph

_CLIENT = "twin-client"
#: Loggers through which a running scheduler or worker speaks.
_LOGGERS = (
    "distributed.scheduler",
    "distributed.core",
    "distributed.stealing",
    "distributed.utils",
    "distributed.worker.state_machine",
    "distributed.active_memory_manager",
    "distributed.shuffle._scheduler_plugin",
)


class _NullComm:
    """The connection over which a worker registers; drops what is written to it."""

    async def write(self, msg: Any, **kwargs: Any) -> int:
        return 0


def _counted_worker_state(scheduler: TwinScheduler) -> type[distributed.scheduler.WorkerState]:
    """Return a subclass of `WorkerState` that tells the scheduler every change of its bytes."""
    slot: Any = distributed.scheduler.WorkerState.nbytes

    class CountedWorkerState(distributed.scheduler.WorkerState):
        __slots__ = ()

        def _change(self, nbytes: int) -> None:
            scheduler.managed += nbytes - slot.__get__(self)
            if scheduler.managed > scheduler.peak_managed:
                scheduler.peak_managed = scheduler.managed
            slot.__set__(self, nbytes)

        # Stealing reads it of every worker again and again: no Python function in between.
        nbytes = property(slot.__get__, _change)

    return CountedWorkerState


class TwinScheduler(Scheduler):
    """The real scheduler, without http server and without sockets.

    ``managed`` and ``peak_managed`` are the bytes that it believes all workers to hold.
    """

    def __init__(
        self,
        open_stream: Callable[[str, float], Any],
        to_client: Callable[[dict[str, Any]], None],
        **kwargs: Any,
    ) -> None:
        super().__init__(dashboard=False, needs_workdir=False, **kwargs)
        self.managed = self.peak_managed = 0
        self._worker_state = _counted_worker_state(self)
        self._open_stream = open_stream
        self._address = "tcp://10.255.255.254:8786"
        self.status = Status.running
        self.clients[_CLIENT] = ClientState(_CLIENT, versions={})

        def send(*messages: dict[str, Any]) -> None:
            for message in messages:
                to_client(message)

        self.client_comms[_CLIENT] = SimpleNamespace(send=send)  # type: ignore[assignment]  # a stand-in

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        """Start nothing; only the attributes exist."""
        self.http_application = None  # type: ignore[assignment]  # there is none here
        self.http_server = None  # type: ignore[assignment]  # there is none here

    async def handle_worker(self, comm: Any, worker: str) -> None:
        """Connect the stream to the worker, instead of reading from a socket."""
        waiting = self.stream_comms[worker]
        # The plugin may have changed the interval.
        stream = self._open_stream(worker, waiting.interval)
        self.stream_comms[worker] = stream
        stream.send(*waiting.buffer)

    async def start_twin(self, plugin: SchedulerPlugin | None) -> None:
        """Start the periodic work of extensions and a plugin, unless None."""
        for name, extension in list(self.plugins.items()):
            if name != "shuffle":
                await extension.start(self)
        if plugin is not None:
            await self.register_scheduler_plugin(plugin, idempotent=False)

    async def join(
        self, address: str, index: int, nthreads: int, memory_limit: int,
        resources: dict[str, float],
    ) -> None:  # fmt: skip
        """Register a worker, as its first message does on a real cluster.

        A worker that comes back has a new id, and a new name until the old one is known to be dead.
        """
        serial = int(address.rpartition(":")[2])
        name = f"{index}-{serial}" if index in self.aliases else index
        await self.add_worker(
            comm=_NullComm(),  # type: ignore[arg-type]  # a stand-in
            address=address,
            status="running",
            server_id=serial,  # type: ignore[arg-type]  # an int hashes alike in every process
            nthreads=nthreads,
            name=name,  # type: ignore[arg-type]  # numbers are names too
            resolve_address=False,
            now=distributed.scheduler.time(),
            resources=resources,
            memory_limit=memory_limit,
            metrics=worker_metrics(0, parse_bandwidth_default(), {}),
            services={},
            local_directory="",
            versions={},
            nanny="",
            extra={},
            stimulus_id=f"worker-connect-{address}",
        )
        # Nothing was added to it yet; the class has the same layout.
        self.workers[address].__class__ = self._worker_state

    def hold(self, who_has: dict[Any, list[str]], nbytes: dict[Any, int]) -> None:
        """Register results that are on workers and that the client keeps."""
        self.update_data(who_has=who_has, nbytes=nbytes, client=_CLIENT)

    def submit(self, graph: TwinGraph) -> None:
        """Do with a graph as ``Scheduler.update_graph``."""
        now = distributed.scheduler.time()
        self._create_taskstate_from_graph(
            dsk=graph.dsk,  # type: ignore[arg-type]  # invariant there, read only
            client=_CLIENT,
            keys=set(graph.keys),
            ordered=graph.order,
            submitting_task=None,
            user_priority=0,
            actors=None,
            fifo_timeout=60.0,
            code=(),
            span_metadata={"collections": []},
            annotations_by_type=graph.annotations,
            global_annotations=None,
            start=now,
            stimulus_id=f"update-graph-{now}",
        )

    def places(self) -> set[Any]:
        """Return names, addresses and hosts of the workers, for restrictions of tasks."""
        hosts = {worker.host for worker in self.workers.values()}
        return {*self.aliases, *self.workers, *hosts}

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
    """Return distributed's assumed bandwidth before any measurement, in bytes/s."""
    return float(dask.utils.parse_bytes(dask.config.get("distributed.scheduler.bandwidth")))


def worker_metrics(
    managed: int, bandwidth: float, peers: Mapping[str, tuple[float, int]]
) -> dict[str, Any]:
    """Return the metrics of a heartbeat that the scheduler reads, without unmanaged memory.

    ``bandwidth`` is in bytes per second; ``peers`` has the sum of the measured bandwidths and their
    count, by peer address.
    """
    return {
        "bandwidth": {"total": bandwidth, "workers": dict(peers), "types": {}},
        "digests_total_since_heartbeat": {},
        "managed_bytes": managed,
        "spilled_bytes": {"memory": 0, "disk": 0},
        "memory": managed,
    }


def expression(collections: list[Any]) -> tuple[Any, set[Any]]:
    """Return the expression that ``Client.compute`` would send, and its output keys."""
    for item in collections:
        if not dask.is_dask_collection(item):
            raise TypeError(f"not a Dask collection: {type(item).__name__}")
    with _repeatable_tokens(collections):
        expr = collections_to_expr(collections)
        for part in expr.walk():
            if isinstance(part, dask._expr.HLGExpr):
                _fill_sets_anew(part.hlg)
        expr = dask._expr.FinalizeCompute(expr).optimize()
        return expr, set(flatten(expr.__dask_keys__()))


def _fill_sets_anew(graph: Any) -> None:
    """Let a graph's sets and layers iterate in the same order, whatever the hash seed."""
    if isinstance(graph, HighLevelGraph):
        for layers in (graph.layers, graph.dependencies):
            if isinstance(layers, dict):
                items = sorted(layers.items(), key=lambda item: str(item[0]))
                layers.clear()
                layers.update(items)
        dependencies: Any = graph.dependencies
        for name, others in dependencies.items():
            if len(others) > 1:
                dependencies[name] = {*sorted(others, key=str)}
        for layer in graph.layers.values():
            if isinstance(layer, MaterializedLayer):
                for node in layer.mapping.values():
                    if isinstance(node, GraphNode) and len(node.dependencies) > 1:
                        node._dependencies = frozenset(sorted(node.dependencies, key=repr))


@contextlib.contextmanager
def _repeatable_tokens(collections: list[Any]) -> Iterator[None]:
    """Derive the random tokens of Dask's expressions from the keys of the collections."""
    thread = threading.get_ident()
    keys = [repr(key) for item in collections for key in flatten(item.__dask_keys__())]
    digest = hashlib.sha256("\n".join(keys).encode()).hexdigest()
    serial = itertools.count()

    class Repeatable:
        @staticmethod
        def uuid4() -> uuid.UUID:
            if threading.get_ident() != thread:
                return uuid.uuid4()
            return uuid.uuid5(uuid.NAMESPACE_OID, f"{digest}/{next(serial)}")

    before = dask._expr.uuid
    dask._expr.uuid = Repeatable  # type: ignore[assignment]  # for a while
    try:
        yield
    finally:
        dask._expr.uuid = before


def materialize(expr: Any, keys: set[Any]) -> tuple[dict[Any, Any], dict[str, dict[Any, Any]]]:
    """Return the tasks, sorted by key, and annotations of an expression, as the scheduler does."""
    dsk, annotations = distributed.scheduler._materialize_graph(expr=expr, validate=False)
    if isinstance(expr, distributed.scheduler.LLGExpr):
        dsk = distributed.scheduler._cull(dsk, keys)
    tasks = sorted(dsk.items(), key=lambda item: str(item[0]))
    dsk.clear()  # in place, to keep what is attached to it
    dsk.update(tasks)
    return dsk, annotations


@contextlib.contextmanager
def collected_errors() -> Iterator[list[logging.LogRecord]]:
    """Collect the exceptions that distributed only logs; drop other log messages of this thread."""
    records: list[logging.LogRecord] = []
    thread = threading.get_ident()

    def elsewhere(record: logging.LogRecord) -> bool:
        if record.thread != thread:
            return True
        if record.exc_info:
            records.append(record)
        return False

    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(elsewhere)
    try:
        yield records
    finally:
        for logger in loggers:
            logger.removeFilter(elsewhere)
