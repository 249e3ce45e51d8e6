"""``python -m benchmarks.scheduler.response_times``: times the API's load on the event loop.

For each endpoint of the JSON API, and for `dask_marsched.progress`: the processor time of the
longest turn of the scheduler's event loop while it is answered, the median of three; of what is
done only once, the one time. Processor time, so that it does not depend on what else the machine
does. The collector of garbage has its turns, too.
"""

from __future__ import annotations

import asyncio
import functools
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import click
import dask.array as da
import numpy as np
from distributed import Event, LocalCluster

from dask_marsched.api.openapi import ROOT
from dask_marsched.client import Client
from dask_marsched.monitoring.progress import Listener

_GATE = "marsched-answering"


class LongestTurn:
    """Measures the turns of an event loop, in processor seconds of its thread."""

    def __init__(self, loop: Any) -> None:
        self.longest = 0.0
        self._on = True
        loop.add_callback(self._tick)

    async def _tick(self) -> None:
        while self._on:
            before = time.thread_time()
            await asyncio.sleep(0)
            self.longest = max(self.longest, time.thread_time() - before)

    def stop(self) -> None:
        """Measure no more."""
        self._on = False


def held(block: Any) -> Any:
    """Return a block when all is over."""
    Event(_GATE).wait()
    return block


def _paths(key: str) -> Iterator[tuple[str, str]]:
    for path in ("/", "/openapi.json", "/status", "/graphs", "/graphs/0"):
        yield path, path
    for path in ("/graphs/0/plan", "/graphs/0/plan?most=10000"):
        yield path, path + " (laid out)"
        yield path, path
    yield "/operands?limit=1000", "/operands?limit=1000"
    yield "/operands?state=fatal", "/operands?state=fatal"
    yield "/operands?state=fatal&offset=150000", "/operands?state=fatal&offset=150000"
    yield "/operands?graph=0&state=fatal", "/operands?graph=0&state=fatal (collected)"
    yield "/operands?graph=0&state=fatal", "/operands?graph=0&state=fatal"
    yield f"/operands?key={urllib.parse.quote(key)}", "/operands?key=..."
    yield "/operands?key=none", "/operands?key=none"
    yield "/counts", "/counts"
    yield "/counts?graph=0", "/counts?graph=0"
    yield "/quota", "/quota"
    yield "/store", "/store"
    yield "/transfers", "/transfers (estimated)"
    yield "/transfers", "/transfers"
    yield "/kernels", "/kernels"
    yield "/faults", "/faults"


def _fetch(url: str) -> None:
    with urllib.request.urlopen(url) as answer:
        answer.read()


def _wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.2)


@click.command()
@click.option("--side", default=450, show_default=True, help="The graph: a square of chunks.")
@click.option("--workers", default=100, show_default=True, help="Workers, of one thread each.")
@click.option("--settle", default=5.0, show_default=True, help="Seconds for what goes on after.")
def main(side: int, workers: int, settle: float) -> None:
    """Measure how long each answer holds up the scheduler."""
    # All of one process: what that takes is not the limit of each.
    options: dict[str, Any] = {"memory_limit": 0, "dashboard_address": ":0"}
    options |= {"n_workers": workers, "threads_per_worker": 1, "processes": False}
    with (
        LocalCluster(worker_dashboard_address=None, **options) as cluster,
        Client(cluster, scheduler_plugin=True) as client,
    ):
        scheduler: Any = cluster.scheduler
        x = da.ones((side, side), chunks=1).map_blocks(held, dtype=float, meta=np.ones((0, 0)))
        future: Any = client.compute(x.sum())
        _wait_for(lambda: sum(len(ws.processing) for ws in scheduler.workers.values()) >= workers)
        time.sleep(settle)
        click.echo(f"{len(scheduler.tasks):,} operands, {len(scheduler.workers)} workers")
        base = f"http://127.0.0.1:{scheduler.http_server.port}/{ROOT}"
        key = str(next(iter(scheduler.tasks)))

        def measure(label: str, ask: Callable[[], None]) -> None:
            first = label.endswith(")")
            turns = []
            for _ in range(1 if first else 3):
                turn = LongestTurn(client.loop)
                ask()
                time.sleep(settle if first else settle / 10)
                turn.stop()
                turns.append(1000 * turn.longest)
            click.echo(f"{label:46} {sorted(turns)[len(turns) // 2]:8.1f} ms")

        measure("(nothing)", lambda: None)
        for path, label in _paths(key):
            measure(label, functools.partial(_fetch, base + path))
        listener = Listener([future], True, 0.2)
        measure(
            "progress (begun)", lambda: client.loop.add_callback(listener.listen, lambda told: None)
        )
        client.loop.add_callback(listener.stop)
        client.cancel(future)
        Event(_GATE, client=client).set()


if __name__ == "__main__":
    main()
