"""Replaces clients and clusters by stubs while a script is explained; none is started."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import dask
import dask.distributed
import distributed
import distributed.client
from dask.delayed import Delayed, delayed
from dask.system import CPU_COUNT
from distributed.deploy.utils import nprocesses_nthreads
from distributed.system import MEMORY_LIMIT

#: Keywords of ``Client.submit`` and ``Client.map`` that are not the function's.
_SUBMIT = frozenset(
    {
        "actor", "actors", "allow_other_workers", "batch_size", "fifo_timeout", "key", "priority",
        "pure", "resources", "retries", "workers",
    }
)  # fmt: skip


@dataclasses.dataclass
class RequestedCluster:
    """The cluster that the script asks for; None for what it leaves open."""

    workers: int | None = None
    threads: int | None = None
    memory_limit: int | str | None = None
    client: StubClient | None = None

    def arguments(self) -> dict[str, Any]:
        """Return the size under the names of the arguments of `explain`."""
        size = ("workers", "threads", "memory_limit")
        return {name: getattr(self, name) for name in size if getattr(self, name) is not None}

    def read_arguments(self, arguments: dict[str, Any]) -> None:
        """Read the arguments of a cluster on this machine or of a batch system's."""
        workers, threads = arguments.get("n_workers"), arguments.get("threads_per_worker")
        if threads is None and "cores" in arguments:  # of a job of the batch system
            threads = max(1, int(arguments["cores"]) // int(arguments.get("processes") or 1))
            workers = workers or 1
        if workers is None:
            processes, each = nprocesses_nthreads()
            workers = processes if threads is None else CPU_COUNT // threads
            threads = threads or each
        self.workers = max(1, int(workers))
        self.threads = max(1, int(threads or CPU_COUNT // self.workers))
        limit = arguments.get("memory_limit", arguments.get("memory", "auto"))
        if limit == "auto":
            limit = int(MEMORY_LIMIT * min(1, self.threads / CPU_COUNT))
        self.memory_limit = limit or int(MEMORY_LIMIT)


class StubFuture(Delayed):
    """A future that is computed when its result is asked for."""

    __slots__ = ()
    status = "pending"

    def result(self, timeout: Any = None) -> Any:
        """Compute it."""
        return self.compute()  # type: ignore[no-untyped-call]  # untyped there

    def done(self) -> bool:
        """Return False: nothing is computed before it is asked for."""
        return False

    def cancel(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    release = cancel

    def __await__(self) -> Iterator[Any]:
        return _result(self.result()).__await__()


async def _result(value: Any) -> Any:
    return value


def _future(value: Any) -> StubFuture:
    task = value if isinstance(value, Delayed) else delayed(value)
    return StubFuture(task.key, task.dask)  # type: ignore[no-untyped-call]  # untyped there


class _Stub:
    """Accepts calls that do not change what is computed."""

    dashboard_link = ""

    def __init__(self, requested: RequestedCluster) -> None:
        self._requested = requested

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *args: object) -> None:
        pass

    def __await__(self) -> Iterator[Any]:
        return _result(self).__await__()

    def close(self, *args: Any, **kwargs: Any) -> Any:
        """Do nothing; may be awaited."""
        return _Stub(self._requested)

    shutdown = restart = wait_for_workers = register_plugin = unregister_worker_plugin = close
    upload_file = rebalance = replicate = cancel = close


class StubCluster(_Stub):
    """Takes the place of any cluster."""

    scheduler_address = "explained://"

    def scale(self, n: int | None = None, *args: Any, **kwargs: Any) -> None:
        """Note the number of workers."""
        self._requested.workers = n or kwargs.get("jobs") or self._requested.workers

    def adapt(self, *args: Any, **kwargs: Any) -> None:
        """Note the largest number of workers."""
        self.scale(kwargs.get("maximum") or kwargs.get("maximum_jobs"))


class StubClient(_Stub):
    """Takes the place of a client: computes through Dask, where computations are explained."""

    asynchronous = False
    status = "running"

    def __init__(self, requested: RequestedCluster, cluster: StubCluster) -> None:
        super().__init__(requested)
        self.cluster = cluster

    def compute(self, collections: Any, **kwargs: Any) -> Any:
        """Return futures of the results."""
        if isinstance(collections, (list, tuple, set, frozenset)):
            return [self.compute(item) for item in collections]
        if not dask.is_dask_collection(collections):
            return collections
        return _future(delayed(_identity)(collections))

    def persist(self, collections: Any, **kwargs: Any) -> Any:
        """Persist now."""
        if isinstance(collections, (list, tuple, set, frozenset)):
            return list(dask.persist(*collections))
        return dask.persist(collections)[0]

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> StubFuture:
        """Return a future of a call."""
        own = {name: value for name, value in kwargs.items() if name not in _SUBMIT}
        return _future(delayed(function, pure=False)(*args, **own))

    def map(self, function: Callable[..., Any], *iterables: Any, **kwargs: Any) -> list[StubFuture]:
        """Submit a call for each group of arguments."""
        return [self.submit(function, *args, **kwargs) for args in zip(*iterables, strict=False)]

    def gather(self, futures: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute futures."""
        return dask.compute(futures)[0]

    def scatter(self, data: Any, **kwargs: Any) -> Any:
        """Return futures of data."""
        return [_future(item) for item in data] if isinstance(data, list | tuple) else _future(data)

    def get(self, graph: Any, keys: Any, **kwargs: Any) -> Any:
        """Compute a graph."""
        return dask.base.get_scheduler()(graph, keys)

    def scheduler_info(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the requested workers."""
        requested = self._requested
        info = {"nthreads": requested.threads or 1, "memory_limit": requested.memory_limit}
        return {"workers": {f"worker-{i}": dict(info) for i in range(requested.workers or 0)}}

    def nthreads(self, *args: Any, **kwargs: Any) -> dict[str, int]:
        """Return the threads of each worker."""
        return {name: info["nthreads"] for name, info in self.scheduler_info()["workers"].items()}

    ncores = nthreads

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"Client.{name} has no stand-in while a script is explained: no cluster is there"
        )


def _identity(value: Any) -> Any:
    return value


def _wait(futures: Any, *args: Any, **kwargs: Any) -> Any:
    dask.compute(futures)


def _as_completed(futures: Iterable[StubFuture], *args: Any, **kwargs: Any) -> Iterator[Any]:
    for future in futures:
        value = future.result()
        ready = _future(delayed(value))
        yield (ready, value) if kwargs.get("with_results") else ready


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    pass


@contextlib.contextmanager
def stub_clients(requested: RequestedCluster, *, as_default: bool) -> Iterator[None]:
    """Let every client and cluster made in this context be a stub that fills ``requested``.

    ``as_default`` lets Dask build its graphs as with a real client: P2P cannot run in local
    threads.
    """

    def new_cluster(cls: type, *args: Any, **kwargs: Any) -> StubCluster:
        requested.read_arguments(kwargs)
        return StubCluster(requested)

    def new_client(cls: type, *args: Any, **kwargs: Any) -> StubClient:
        address = args[0] if args else kwargs.get("address")
        cluster = address if isinstance(address, StubCluster) else StubCluster(requested)
        if not (address or dask.config.get("scheduler-address", None)):
            requested.read_arguments(kwargs)
        requested.client = StubClient(requested, cluster)
        return requested.client

    def current(*args: Any, **kwargs: Any) -> StubClient:
        if requested.client is None or not as_default:
            raise ValueError("No clients found")
        return requested.client

    functions = {
        "wait": _wait,
        "as_completed": _as_completed,
        "progress": _do_nothing,
        "fire_and_forget": _wait,
        "default_client": current,
        "get_client": current,
    }
    with contextlib.ExitStack() as undo:
        for cls, new in (
            (distributed.Client, new_client),
            (distributed.deploy.Cluster, new_cluster),
        ):
            undo.callback(setattr, cls, "__new__", lambda cls, *args, **kwargs: object.__new__(cls))
            cls.__new__ = new  # type: ignore[method-assign,assignment]  # undone above
        for module in (distributed, distributed.client, dask.distributed):
            for name, function in functions.items():
                if hasattr(module, name):
                    undo.callback(setattr, module, name, getattr(module, name))
                    setattr(module, name, function)
        yield
