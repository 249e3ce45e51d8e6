"""Times bags of tiny tasks under each policy in turn, with the processor time of each process.

The scheduler is a process of its own, so that its time and the client's are told apart.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dask.utils import key_split
from distributed import Scheduler
from distributed.deploy.subprocess import SubprocessCluster

from dask_marsched import Client
from dask_marsched.bench.cluster import policy_plugin
from dask_marsched.bench.metrics import STOCK, median
from dask_marsched.bench.probes import cpu_seconds

CALLS = 1_000
CLIENTS, EACH = 10, 1_000
LOOP, TOGETHER = f"{CALLS:,} calls in a row", f"{CLIENTS} clients"
#: Of stock's wall time: calls in a row, and the others.
BAR_LOOP, BAR = 0.90, 0.30


@dataclass(frozen=True)
class Run:
    """One run: seconds of wall time, and of the processors of scheduler, workers and client.

    `spread` is the time of the slowest of several clients divided by that of the fastest.
    """

    program: str
    policy: str
    seconds: float
    scheduler: float
    workers: float
    client: float
    spread: float = 1.0


def _increment(i: int) -> int:
    return i + 1


def _map(client: Client, numbers: range) -> None:
    found = client.gather(client.map(_increment, numbers))  # type: ignore[no-untyped-call]  # untyped there
    assert found == list(range(numbers.start + 1, numbers.stop + 1))


def mapping(count: int) -> Callable[[Client], float]:
    """Return a program that maps a function over `count` numbers."""

    def run(client: Client) -> float:
        _map(client, range(count))
        return 1.0

    return run


def loop(client: Client) -> float:
    """Submit calls one after another, each of the result of the last one."""
    value = 0
    for _ in range(CALLS):
        value = client.submit(_increment, value, pure=False).result()
    assert value == CALLS
    return 1.0


def together(client: Client) -> float:
    """Let several clients map at once; return the time of the last divided by the first one's."""
    address = client.scheduler_info()["address"]
    took: list[float] = []
    barrier = threading.Barrier(CLIENTS, timeout=60)

    def one(number: int) -> None:
        with Client(address, set_as_default=False) as mine:
            barrier.wait()
            began = time.perf_counter()
            _map(mine, range(number * EACH, (number + 1) * EACH))
            took.append(time.perf_counter() - began)
            barrier.wait()

    threads = [threading.Thread(target=one, args=(i,)) for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(took) == CLIENTS
    return max(took) / min(took)


def run(
    counts: Sequence[int],
    policies: Sequence[str],
    repeat: int,
    workers: int = 4,
    progress: Callable[[Run], None] = lambda _: None,
    others: bool = True,
) -> list[Run]:
    """Run each program ``repeat`` times under each policy in turn, after one run not counted."""
    programs = {f"map {count:,}": mapping(count) for count in counts}
    if others:
        programs |= {LOOP: loop, TOGETHER: together}
    runs = []
    with contextlib.ExitStack() as stack:
        clients = {policy: stack.enter_context(_client(policy, workers)) for policy in policies}
        for name, program in programs.items():
            for repetition in range(-1, repeat):
                for policy in list(policies)[:: -1 if repetition % 2 else 1]:
                    found = _measure(name, policy, program, clients[policy])
                    if repetition >= 0:
                        runs.append(found)
                        progress(found)
    return runs


@contextlib.contextmanager
def _client(policy: str, workers: int) -> Iterator[Client]:
    options: dict[str, Any] = {
        "worker_kwargs": {"nthreads": 1},
        "scheduler_kwargs": {"dashboard": False},
    }
    with (
        SubprocessCluster(n_workers=workers, **options) as cluster,
        Client(cluster, scheduler_plugin=policy_plugin(policy), set_as_default=False) as client,
    ):
        client.wait_for_workers(workers)
        _map(client, range(-100, 0))
        yield client


def _measure(name: str, policy: str, program: Callable[[Client], float], client: Client) -> Run:
    gc.collect()
    scheduler = client.run_on_scheduler(os.getpid)  # type: ignore[no-untyped-call]  # untyped there
    workers = list(client.run(os.getpid).values())
    before = _processor_times(scheduler, workers)
    start = time.perf_counter()
    spread = program(client)
    seconds = time.perf_counter() - start
    while client.run_on_scheduler(_increments_known):  # type: ignore[no-untyped-call]  # untyped there
        time.sleep(0.05)
    after = _processor_times(scheduler, workers)
    used = [b - a for a, b in zip(before, after, strict=True)]
    return Run(name, policy, seconds, used[0], used[1], used[2], spread)


def _increments_known(dask_scheduler: Scheduler) -> int:
    return sum(key_split(key) == key_split(_increment.__name__) for key in dask_scheduler.tasks)


def _processor_times(scheduler: int, workers: Sequence[int]) -> tuple[float, float, float]:
    mine = cpu_seconds(())
    return cpu_seconds([scheduler]) - mine, cpu_seconds(workers) - mine, mine


def cells(runs: Sequence[Run]) -> list[list[str]]:
    """Return the table of medians and their ratios to stock's, its head first."""
    head = ("program", "policy", "s", "x", "scheduler s", "x", "workers s", "client s", "spread")
    table = [[*head, "verdict"]]
    for name in dict.fromkeys(r.program for r in runs):
        stock = _medians(runs, name, STOCK)
        for policy in dict.fromkeys(r.policy for r in runs):
            found = _medians(runs, name, policy)
            ratio = found["seconds"] / stock["seconds"]
            met = ratio <= (BAR_LOOP if name == LOOP else BAR)
            row = [name, policy, f"{found['seconds']:.2f}", f"{ratio:.2f}"]
            row += [f"{found['scheduler']:.2f}", f"{found['scheduler'] / stock['scheduler']:.2f}"]
            row += [f"{found[of]:.2f}" for of in ("workers", "client", "spread")]
            table.append([*row, "-" if policy == STOCK else "met" if met else "not met"])
    return table


def _medians(runs: Sequence[Run], name: str, policy: str) -> dict[str, float]:
    some = [r for r in runs if (r.program, r.policy) == (name, policy)]
    fields = ("seconds", "scheduler", "workers", "client", "spread")
    return {of: median(getattr(r, of) for r in some) or math.nan for of in fields}
