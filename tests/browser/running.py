"""A cluster that is at work as long as somebody looks, and to which everything has happened."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

import dask.array as da
import numpy as np
from distributed import Client, Event, LocalCluster

from dask_marsched import MarsSchedulerPlugin
from dask_marsched.config import Settings
from tests.processes import local_cluster

#: Everything that has something to show.
SETTINGS = {
    "quota_enabled": True,
    "store_shared": True,
    "kernels_enabled": True,
    "interrupt": True,
    "adopt": "all",
    "restart_patience": "20s",
}


def slowly(block: np.ndarray) -> np.ndarray:
    """Return a block, after a moment: pages have to be looked at meanwhile."""
    time.sleep(0.02)  # workload
    return block


def refused(block: np.ndarray) -> np.ndarray:
    """Fail as an analysis does that meets what it does not expect."""
    raise ValueError("a chunk with <no> time axis")


def analysis(seed: int, chunks: int = 12) -> da.Array:
    """Return a computation with wide inputs, joins, transfers and reductions."""
    random = da.random.default_rng(seed)
    x = random.random((chunks * 200, 2000), chunks=(200, 500)).map_blocks(slowly)
    y = (x - x.mean(axis=0)) ** 2 + 0.5 * x
    crossed = (y[: chunks * 100] + y[chunks * 100 :]).T @ y[: chunks * 100, :500]
    return y.mean(axis=0).sum() + y.T.mean(axis=1).sum() + crossed.sum()


class Work:
    """Computes one analysis after the other in a thread, until it is stopped."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.failure: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        seed = 0
        while not self._stop.is_set():
            seed += 1
            try:
                self.client.compute(analysis(seed)).result()
            except Exception as error:
                self.failure = error
                return

    def __enter__(self) -> "Work":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert self.failure is None, self.failure


def misfortunes(cluster: LocalCluster, client: Client) -> None:
    """Let a computation fail, another one be cancelled, and a worker die that holds results."""
    array = da.ones((400, 400), chunks=100)
    failed = client.compute(array.map_blocks(refused, dtype=float).sum())
    failed.exception()
    begun, end = Event("begun"), Event("end")
    waiting = client.submit(lambda: (begun.set(), end.wait(timeout=60)))
    begun.wait(timeout=60)
    client.cancel([waiting])
    end.set()
    kept = client.persist(da.random.random((1000, 1000), chunks=250))
    client.gather(client.compute(kept.sum()))
    address, nanny = next((w.worker_address, w) for w in cluster.workers.values())
    os.kill(nanny.pid, signal.SIGKILL)
    gone = threading.Event()
    while address in client.scheduler_info(n_workers=-1)["workers"]:
        gone.wait(0.05)
    client.wait_for_workers(len(cluster.workers))
    client.gather(client.compute(kept.sum()))


@contextlib.contextmanager
def working_cluster(**options: object) -> Iterator[tuple[LocalCluster, Client]]:
    """Make a cluster of two processes with a dashboard and our plugin, and a client of it."""
    defaults = {"n_workers": 2, "threads_per_worker": 2, "memory_limit": "1GiB"}
    with local_cluster(**{**defaults, **options}) as cluster, Client(cluster) as client:
        client.register_plugin(MarsSchedulerPlugin(settings=Settings(**SETTINGS)))
        yield cluster, client
