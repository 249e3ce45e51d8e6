"""Cancels running tasks, under stock Dask and with interrupts, each on its own cluster.

It measures how long tasks go on, whether workers survive, and whether reused keys work.
"""

from __future__ import annotations

import logging
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster
from distributed.client import FutureCancelledError

from dask_marsched.bench.metrics import STOCK

OURS = "interrupt"
WORKERS, THREADS = 2, 2
#: Seconds that a task runs which nobody interrupts, and what counts as at once.
_LONG, _AT_ONCE = 0.5, 0.1


@dataclass(frozen=True)
class Cancels:
    """What cancelling did on one cluster.

    Attributes
    ----------
    contestant : str
        ``stock`` or ``interrupt``.
    cancels : int
        Loops in Python and NumPy, by turns, that were cancelled while they ran.
    stopped : int
        Of these, those that ended within a tenth of a second.
    median, longest : float
        Seconds from the cancel to the end of the loop.
    storm : int
        Cancels at random moments.
    healthy : bool
        Whether all threads of all workers worked afterwards.
    again : int
        Keys that were submitted again right after a cancel, with another function.
    failed : int
        Of these, those whose new future was cancelled, or had no or a wrong result.
    """

    contestant: str
    cancels: int
    stopped: int
    median: float
    longest: float
    storm: int
    healthy: bool
    again: int
    failed: int


def _loop(numpy: bool, begun: str, ended: str) -> None:
    """Run for a while; say when it began and when it ended, by the clock of the machine."""
    import numpy as np

    x = np.ones(100_000)
    end = time.monotonic() + _LONG
    try:
        Path(begun).write_text("")
        while time.monotonic() < end:
            if numpy:
                np.sin(x)
    finally:
        Path(f"{ended}.part").write_text(str(time.monotonic()))
        Path(f"{ended}.part").rename(ended)  # whoever waits for it finds all of it


def _short(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def _meet(directory: str, name: int, count: int) -> bool:
    """Wait until so many tasks run at the same time."""
    (Path(directory) / str(name)).write_text("")
    end = time.monotonic() + 30
    while len(list(Path(directory).iterdir())) < count:
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def _successor(x: int) -> int:
    return x + 1


def _wait_for(path: str) -> None:
    end = time.monotonic() + 30
    while not Path(path).exists() and time.monotonic() < end:
        time.sleep(0.001)


def _submit(client: Client, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Submit what may be interrupted: what it writes is for the benchmark only."""
    with dask.annotate(pure=True):
        return client.submit(function, *args, pure=False, **kwargs)


def _latencies(client: Client, directory: str, count: int) -> list[float]:
    found = []
    for i in range(count):
        begun, ended = f"{directory}/begun-{i}", f"{directory}/ended-{i}"
        future = _submit(client, _loop, bool(i % 2), begun, ended)
        _wait_for(begun)
        start = time.monotonic()
        future.cancel()
        _wait_for(ended)
        found.append(float(Path(ended).read_text()) - start)
    return found


def _storm(client: Client, count: int) -> None:
    rng = random.Random(0)
    for _ in range(count // 20):
        futures = [_submit(client, _short, rng.random() / 50) for _ in range(20)]
        time.sleep(rng.random() / 50)
        client.cancel(futures)


def _is_healthy(client: Client) -> bool:
    slots = WORKERS * THREADS
    with tempfile.TemporaryDirectory() as directory:
        met = client.map(_meet, [directory] * slots, range(slots), [slots] * slots, pure=False)
        return all(client.gather(met))


def _again(client: Client, count: int) -> int:
    failed = 0
    for i in range(count):
        future = _submit(client, _short, 0.1, key="again")
        time.sleep(0.02)
        future.cancel()
        del future
        new = client.submit(_successor, i, key="again")
        try:
            failed += new.result(timeout=20) != i + 1
        except (FutureCancelledError, TimeoutError):
            failed += 1
        new.cancel()
        del new
        time.sleep(0.03)  # else the next one is answered with this result
    return failed


def _plugin(contestant: str) -> Any:
    if contestant == STOCK:
        return None
    from dask_marsched.config import Settings
    from dask_marsched.scheduler_plugin import MarsSchedulerPlugin

    return MarsSchedulerPlugin(settings=Settings.from_config().replace(interrupt=True))


def measure(contestant: str, cancels: int, storm: int, again: int) -> Cancels:
    """Cancel on a fresh cluster."""
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalCluster(
            n_workers=WORKERS,
            threads_per_worker=THREADS,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        plugin = _plugin(contestant)
        if plugin is not None:
            client.register_plugin(plugin)
        seconds = _latencies(client, directory, cancels)
        _storm(client, storm)
        healthy = _is_healthy(client)
        failed = _again(client, again)
    return Cancels(
        contestant,
        cancels,
        sum(s <= _AT_ONCE for s in seconds),
        statistics.median(seconds),
        max(seconds),
        storm,
        healthy,
        again,
        failed,
    )


def run(
    progress: Callable[[Cancels], None] = lambda _: None,
    *,
    cancels: int = 200,
    storm: int = 2000,
    again: int = 500,
) -> list[Cancels]:
    """Measure stock Dask and ours."""
    found = []
    for contestant in (STOCK, OURS):
        found.append(measure(contestant, cancels, storm, again))
        progress(found[-1])
    return found


def cells(found: list[Cancels]) -> list[list[str]]:
    """Return the table."""
    table = [["", *(c.contestant for c in found)]]
    for text, show in (
        ("running loops cancelled", lambda c: str(c.cancels)),
        ("ended within 0.1 s", lambda c: f"{c.stopped} ({c.stopped / c.cancels:.1%})"),
        ("median, s", lambda c: f"{c.median:.3f}"),
        ("longest, s", lambda c: f"{c.longest:.3f}"),
        ("random cancels", lambda c: str(c.storm)),
        ("all threads work afterwards", lambda c: "yes" if c.healthy else "no"),
        ("submitted again at once", lambda c: str(c.again)),
        ("of these failed", lambda c: str(c.failed)),
    ):
        table.append([text, *map(show, found)])
    return table
