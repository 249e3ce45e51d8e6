"""Workers that share memory, and what tests ask of them."""

import asyncio
import contextlib

import dask
import numpy as np
from distributed import Client, LocalCluster, WorkerPlugin
from distributed.utils_test import async_poll_for

from dask_marsched.host.worker import data
from dask_marsched.host.worker.transfer import HandleTransfer
from tests.store.arrays import kinds, same

MIB = 1 << 20
LEAST = 100_000  # bytes


class Sharing(WorkerPlugin):
    """Puts the store and the transfer into a worker, as the worker plugin of the package does."""

    name = "sharing"

    def __init__(self, cap=64 * MIB):
        self.cap = cap

    async def setup(self, worker):
        self.caught = []
        self.store = data.install(worker)
        self.transfer = HandleTransfer(
            worker,
            self.store,
            cap=self.cap,
            least=LEAST,
            caught=lambda where, error: self.caught.append((where, repr(error))),
        )
        self.transfer.start()

    async def teardown(self, worker):
        await self.transfer.uninstall()
        data.uninstall(worker, self.store)


def state(dask_worker):
    """Run in a worker: its counters."""
    plugin = dask_worker.plugins["sharing"]
    arena = plugin.transfer.arena
    assert plugin.caught == []
    return {
        **plugin.transfer.counters,
        "fallbacks": {k: n for k, n in plugin.transfer.fallbacks.items() if n},
        "published": arena.published,
        "recycled": arena.recycled,
        "made here": arena.made_here,
        "refused": arena.refused,
        "ahead": plugin.transfer.publisher.ahead,
        "live": arena.live,
        "filled": arena.filled,
        "held": arena.held(),
        "orphaned": plugin.transfer.attachments.orphaned,
        "mapped": plugin.transfer.attachments.mapped,
        "memory": dask_worker.monitor.get_process_memory(),
        "stock memory": dask_worker.monitor.proc.memory_info().rss,
        "stored": {k: getattr(v, "nbytes", None) for k, v in plugin.store.fast.items()},
    }


async def set_up(dask_worker):
    """Run in a worker: wait until it shares; return why it does not."""

    def there():
        return hasattr(dask_worker.plugins.get("sharing"), "transfer")

    await async_poll_for(there, 30)
    sharing = dask_worker.plugins["sharing"].transfer
    await asyncio.wait([sharing.starting])
    return sharing.reason


def made(kind):
    return kinds()[kind]


def numbers(n, value=1.0):
    return np.full(n, value)


def checked(got, kind):
    return same(got, kinds()[kind])


def overwrite(x):
    before = float(x.sum())
    x[:] = -1
    return before


def total(*arrays):
    return float(sum(x.sum() for x in arrays))


class Workers:
    """Two or more workers of a cluster, and what can be asked of them."""

    def __init__(self, client):
        self.client = client
        self.addresses = list(client.nthreads())

    def __getitem__(self, i):
        return self.client.run(state, workers=[self.addresses[i]])[self.addresses[i]]

    def on(self, i, function, *args, key=None, **kwargs):
        return self.client.submit(
            function, *args, workers=[self.addresses[i]], pure=False, key=key, **kwargs
        )


@contextlib.contextmanager
def cluster(plugin=None, **options):
    defaults = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    config = {
        # nobody drops or moves what a test looks at
        "distributed.scheduler.active-memory-manager.start": False,
        "distributed.scheduler.work-stealing": False,
    }
    with (
        dask.config.set(config),
        LocalCluster(**{**defaults, **options}) as made,
        Client(made) as client,
    ):
        if plugin is not None:
            client.register_plugin(plugin)
            assert set(client.run(set_up).values()) == {None}
        yield client
