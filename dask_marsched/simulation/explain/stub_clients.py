"""Replaces clients and clusters by stubs while a script is explained; none is started."""

from __future__ import annotations

import contextlib
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


#: Size of the cluster that the script asks for, as arguments of `explain`; without what it leaves
#: open.
RequestedSize = dict[str, Any]


def _size(arguments: dict[str, Any]) -> RequestedSize:
    """Return the size from the arguments of a cluster on this machine or of a batch system's."""
    workers, threads = arguments.get("n_workers"), arguments.get("threads_per_worker")
    if threads is None and "cores" in arguments:  # of a job of the batch system
        threads = max(1, int(arguments["cores"]) // int(arguments.get("processes") or 1))
        workers = workers or 1
    if workers is None:
        processes, each = nprocesses_nthreads()
        workers = processes if threads is None else CPU_COUNT // threads
        threads = threads or each
    workers = max(1, int(workers))
    threads = max(1, int(threads or CPU_COUNT // workers))
    limit = arguments.get("memory_limit", arguments.get("memory", "auto"))
    if limit == "auto":
        limit = int(MEMORY_LIMIT * min(1, threads / CPU_COUNT))
    return {"workers": workers, "threads": threads, "memory_limit": limit or int(MEMORY_LIMIT)}


class _Future(Delayed):
    """A future that is computed when its result is asked for."""

    __slots__ = ()
    status = "pending"

    def result(self, timeout: Any = None) -> Any:
        return self.compute()  # type: ignore[no-untyped-call]  # untyped there

    def done(self) -> bool:
        return False

    def cancel(self, *args: Any, **kwargs: Any) -> None:
        pass

    release = cancel

    def __await__(self) -> Iterator[Any]:
        return _awaitable(self.result())


def _awaitable(value: Any) -> Iterator[Any]:
    async def result() -> Any:
        return value

    return result().__await__()


def _future(value: Any) -> _Future:
    task = value if isinstance(value, Delayed) else delayed(value)
    return _Future(task.key, task.dask)  # type: ignore[no-untyped-call]  # untyped there


class _Stub:
    """Accepts calls that do not change what is computed; all may be awaited."""

    dashboard_link = ""

    def __init__(self, requested: RequestedSize) -> None:
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
        return _awaitable(self)

    def close(self, *args: Any, **kwargs: Any) -> Any:
        return _Stub(self._requested)

    shutdown = restart = wait_for_workers = register_plugin = unregister_worker_plugin = close
    upload_file = rebalance = replicate = cancel = close


class _Cluster(_Stub):
    """Takes the place of any cluster."""

    scheduler_address = "explained://"

    def scale(self, n: int | None = None, *args: Any, **kwargs: Any) -> None:
        if workers := n or kwargs.get("jobs"):
            self._requested["workers"] = workers

    def adapt(self, *args: Any, **kwargs: Any) -> None:
        self.scale(kwargs.get("maximum") or kwargs.get("maximum_jobs"))


class _Client(_Stub):
    """Takes the place of a client: computes through Dask, where computations are explained."""

    asynchronous = False
    status = "running"

    def __init__(self, requested: RequestedSize, cluster: _Cluster) -> None:
        super().__init__(requested)
        self.cluster = cluster

    def compute(self, collections: Any, **kwargs: Any) -> Any:
        if isinstance(collections, (list, tuple, set, frozenset)):
            return [self.compute(item) for item in collections]
        if not dask.is_dask_collection(collections):
            return collections
        return _future(delayed(_identity)(collections))

    def persist(self, collections: Any, **kwargs: Any) -> Any:
        if isinstance(collections, (list, tuple, set, frozenset)):
            return list(dask.persist(*collections))
        return dask.persist(collections)[0]

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> _Future:
        own = {name: value for name, value in kwargs.items() if name not in _SUBMIT}
        return _future(delayed(function, pure=False)(*args, **own))

    def map(self, function: Callable[..., Any], *iterables: Any, **kwargs: Any) -> list[_Future]:
        return [self.submit(function, *args, **kwargs) for args in zip(*iterables, strict=False)]

    def gather(self, futures: Any, *args: Any, **kwargs: Any) -> Any:
        return dask.compute(futures)[0]

    def scatter(self, data: Any, **kwargs: Any) -> Any:
        return [_future(item) for item in data] if isinstance(data, list | tuple) else _future(data)

    def get(self, graph: Any, keys: Any, **kwargs: Any) -> Any:
        return dask.base.get_scheduler()(graph, keys)

    def scheduler_info(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        size: dict[str, Any] = {"workers": 0, "threads": 1, "memory_limit": None, **self._requested}
        info = {"nthreads": size["threads"], "memory_limit": size["memory_limit"]}
        return {"workers": {f"worker-{i}": dict(info) for i in range(size["workers"])}}

    def nthreads(self, *args: Any, **kwargs: Any) -> dict[str, int]:
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


def _as_completed(futures: Iterable[_Future], *args: Any, **kwargs: Any) -> Iterator[Any]:
    for future in futures:
        value = future.result()
        ready = _future(delayed(value))
        yield (ready, value) if kwargs.get("with_results") else ready


@contextlib.contextmanager
def stub_clients(requested: RequestedSize, *, as_default: bool) -> Iterator[None]:
    """Let every client and cluster made in this context be a stub that fills ``requested``.

    ``as_default`` lets Dask build its graphs as with a real client: P2P cannot run in local
    threads.
    """
    client: _Client | None = None

    def new_cluster(cls: type, *args: Any, **kwargs: Any) -> _Cluster:
        requested.update(_size(kwargs))
        return _Cluster(requested)

    def new_client(cls: type, *args: Any, **kwargs: Any) -> _Client:
        nonlocal client
        address = args[0] if args else kwargs.get("address")
        cluster = address if isinstance(address, _Cluster) else _Cluster(requested)
        if not (address or dask.config.get("scheduler-address", None)):
            requested.update(_size(kwargs))
        client = _Client(requested, cluster)
        return client

    def current(*args: Any, **kwargs: Any) -> _Client:
        if client is None or not as_default:
            raise ValueError("No clients found")
        return client

    functions = {
        "wait": _wait,
        "as_completed": _as_completed,
        "progress": lambda *args, **kwargs: None,
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
