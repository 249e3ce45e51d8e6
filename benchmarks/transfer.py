"""Times the transfer of chunks between two workers of one host, by stock Dask and by mapping.

Both are timed in the same worker process, by turns, on chunks of their own, up to where every
page of the chunk has been read: mapping is quick, reading what was mapped is part of the price.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from distributed import Client, LocalCluster, Worker, WorkerPlugin, wait
from distributed.worker import get_data_from_worker

from dask_marsched.host.worker import data as store
from dask_marsched.host.worker.transfer import HandleTransfer
from dask_marsched.policies.sharing import ShareModel

MIB = 1 << 20
SIZES = (1, 8, 64)  # MiB
PAGE = 4096
NAME = "bench-transfer"
THREADS = 2
BUSY = 1.0  # seconds of the work that keeps a thread busy


@dataclass(frozen=True)
class Fetches:
    """Times of fetching chunks of one size, medians.

    Attributes
    ----------
    mib : int
        Size of a chunk, MiB.
    busy : bool
        All threads of both workers were at work meanwhile.
    stock, first, again, ahead : float
        Seconds by stock Dask, by the first worker that asks, by one that asks later, and by the
        first one where the result was published when it was made.
    mapped : int
        How many chunks of ours were mapped indeed.
    fetches : int
        How many were to be.
    """

    mib: int
    busy: bool
    stock: float
    first: float
    again: float
    ahead: float
    mapped: int
    fetches: int


class _AheadByName(ShareModel):
    """Has results published ahead that are called so, and no others."""

    def is_shared(self, kind: str) -> bool:
        return kind == "ahead"


class _Sharing(WorkerPlugin):
    """The store and the transfer alone."""

    name = NAME

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.errors: list[str] = []

    async def setup(self, worker: Worker) -> None:
        """Install both."""
        data = store.install(worker)
        self.transfer = HandleTransfer(worker, data, cap=self.cap, least=1, caught=self._caught)
        self.transfer.publisher.sharing = _AheadByName()
        self.transfer.start()

    async def teardown(self, worker: Worker) -> None:
        """Remove both."""
        await self.transfer.uninstall()

    def _caught(self, where: str, error: Exception) -> None:
        self.errors.append(f"{where}: {error!r}")


async def _ready(dask_worker: Worker) -> str | None:
    sharing: Any = dask_worker.plugins[NAME]
    await asyncio.wait([sharing.transfer.starting])
    reason: str | None = sharing.transfer.reason
    return reason


def _make(nbytes: int, seed: int) -> Any:
    return np.random.default_rng(seed).random(nbytes // 8)


def _spin(seconds: float) -> None:
    end, x = time.perf_counter() + seconds, np.random.default_rng(0).random(100_000)
    while time.perf_counter() < end:
        np.sin(x)


async def _fetch_by_turns(
    owner: str, rounds: Sequence[dict[str, str]], dask_worker: Worker
) -> list[dict[str, float]]:
    """Run in a worker: fetch the keys of each round, by way; return seconds, and how many came."""
    sharing: Any = dask_worker.plugins[NAME]
    times = []
    for keys in rounds:
        spent: dict[str, float] = {"mapped": 0}
        for way, key in keys.items():
            start = time.perf_counter()
            if way == "stock":
                answer: Any = await get_data_from_worker(
                    rpc=dask_worker.rpc, keys=[key], worker=owner, who=dask_worker.address
                )
                got = answer["data"]
            else:
                got = await sharing.transfer.fetch(owner, [key])
            for value in got.values():
                value.view(np.uint8)[::PAGE].sum()
            spent[way] = time.perf_counter() - start
            spent["mapped"] += way != "stock" and len(got)
            del got
            value = answer = None
        times.append(spent)
    return times


@contextlib.contextmanager
def _busy(client: Client, addresses: Sequence[str], rounds: int) -> Iterator[None]:
    futures = [
        client.submit(_spin, BUSY, workers=[address], pure=False)
        for address in addresses
        for _ in range(THREADS * rounds)
    ]
    try:
        yield
    finally:
        client.cancel(futures, force=True)


def run(repeat: int, sizes: Sequence[int] = SIZES) -> list[Fetches]:
    """Measure, on a cluster of two workers with two threads.

    Parameters
    ----------
    repeat : int
        Fetches of each size and way.
    sizes : sequence of int
        Sizes of the chunks, MiB.

    Raises
    ------
    RuntimeError
        If the workers cannot share memory here.
    """
    with (
        LocalCluster(n_workers=2, threads_per_worker=THREADS, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        owner, reader = client.scheduler_info()["workers"]
        client.register_plugin(_Sharing(cap=16 * max(sizes) * MIB))
        reasons = set(client.run(_ready).values())
        if reasons != {None}:
            raise RuntimeError(f"the workers cannot share memory here: {reasons}")
        return [
            _measure(client, owner, reader, mib, busy, repeat)
            for busy in (False, True)
            for mib in sizes
        ]


def _measure(client: Client, owner: str, reader: str, mib: int, busy: bool, repeat: int) -> Fetches:
    times: list[dict[str, float]] = []
    for i in range(repeat + 2):
        names = {way: f"{way}-{mib}-{busy}-{i}" for way in ("stock", "first", "ahead")}
        chunks = [
            client.submit(_make, mib * MIB, i, workers=[owner], key=name) for name in names.values()
        ]
        wait(chunks)
        # Who comes first finds the other process asleep: by turns.
        order = (
            ("stock", "first", "again", "ahead") if i % 2 else ("first", "again", "ahead", "stock")
        )
        keys = {way: names["first" if way == "again" else way] for way in order}
        with _busy(client, [owner, reader], 3) if busy else contextlib.nullcontext():
            answer = client.run(_fetch_by_turns, owner, [keys], workers=[reader])
        if i > 1:  # the first ones find no memory to recycle
            times += answer[reader]
        del chunks
    typical = {
        way: statistics.median(spent[way] for spent in times)
        for way in ("stock", "first", "again", "ahead")
    }
    mapped = int(sum(spent["mapped"] for spent in times))
    return Fetches(mib, busy, **typical, mapped=mapped, fetches=3 * len(times))


def cells(measured: Sequence[Fetches]) -> list[list[str]]:
    """Return the table of what was measured, a row for each size."""
    rows = [
        [
            "chunk",
            "threads",
            "stock",
            "first",
            "ratio",
            "again",
            "ratio",
            "ahead",
            "ratio",
            "mapped",
        ]
    ]
    rows += [
        [
            f"{m.mib} MiB",
            "busy" if m.busy else "idle",
            f"{1000 * m.stock:.1f} ms",
            f"{1000 * m.first:.1f} ms",
            f"{m.stock / m.first:.1f}",
            f"{1000 * m.again:.1f} ms",
            f"{m.stock / m.again:.1f}",
            f"{1000 * m.ahead:.1f} ms",
            f"{m.stock / m.ahead:.1f}",
            f"{m.mapped}/{m.fetches}",
        ]
        for m in measured
    ]
    return rows
