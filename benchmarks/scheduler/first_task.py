"""Times `compute()` up to the first task sent, under each policy in turn, on one scheduler.

The scheduler is a process of its own (``python -m benchmarks.scheduler.first_task``), warm and with
its garbage collected. Each measurement registers the plugin anew and sends a program twice: nothing
is remembered of its graph at first, and all that can be when it comes again, under other names.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from dask.base import collections_to_expr
from distributed import Client, Scheduler, Worker

from benchmarks.scheduler.planning import STARTING, _line, _start
from dask_marsched.bench.cluster import policy_plugin
from dask_marsched.bench.metrics import STOCK, median
from dask_marsched.core import memoization

BAR = 1.05  # of stock's
WORKERS = 4
_SIDE = 4  # elements of a chunk's side
_WARM = 100
#: Seconds in which the workers, here in the client's process, have set themselves up for a policy.
_SET_UP = 0.5


@dataclass(frozen=True)
class Arrival:
    """One graph that arrived.

    Attributes
    ----------
    shape
        Of the graph, one of `SHAPES`.
    asked
        Tasks asked for.
    policy
        Under what, see `cluster.policy_plugin`.
    tasks
        Tasks of the graph as stock Dask has it.
    seconds
        From the client's call to the first task sent.
    turn
        Seconds for which the plugin's handler of the graph held the event loop.
    again
        Whether the same graph, but for its names, was there before.
    """

    shape: str
    asked: int
    policy: str
    tasks: int
    seconds: float
    turn: float
    again: bool


def _grid(n: int) -> Any:
    # named anew each time: a graph that the scheduler knows is not sent again
    return da.random.default_rng().random((n * _SIDE, n * _SIDE), chunks=_SIDE)


def _reduction(n: int) -> Any:
    x = _grid(n)
    y = x + x.T
    return (y - y.mean(axis=0)).std()


def _stencil(n: int) -> Any:
    return da.map_overlap(np.copy, _grid(n), depth=1, boundary="periodic").sum()


def _rechunk(n: int) -> Any:
    x = _grid(n)
    return x.rechunk((_SIDE * n, _SIDE // 2), method="tasks").sum()


SHAPES: dict[str, Callable[[int], Any]] = {
    "reduction": _reduction,
    "stencil": _stencil,
    "rechunk": _rechunk,
}


def tasks_of(program: Any) -> int:
    """Return the number of tasks that stock Dask makes of a program."""
    return len(collections_to_expr([program]).optimize().__dask_graph__())


def side_for(shape: str, tasks: int) -> int:
    """Return the chunks of a side with which a graph of that shape has about so many tasks."""
    low, high = 2, 4
    make = SHAPES[shape]
    while tasks_of(make(high)) < tasks:
        low, high = high, 2 * high
    while high - low > max(1, low // 20):
        middle = (low + high) // 2
        low, high = (middle, high) if tasks_of(make(middle)) < tasks else (low, middle)
    return high


def run(
    policies: Sequence[str],
    sizes: Sequence[int],
    repeat: int,
    progress: Callable[[Arrival], None] = lambda _: None,
) -> list[Arrival]:
    """Measure policies in alternation, for each shape and size in turn."""
    processes: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryFile("w+") as log:
        try:
            module = [sys.executable, "-m", "benchmarks.scheduler.first_task"]
            address = _line(_start(module, log, processes), STARTING)["address"]
            return asyncio.run(_measure(address, policies, sizes, repeat, progress))
        finally:
            for process in processes:
                process.kill()  # there is nothing to be saved in it
                process.communicate()


async def _measure(
    address: str,
    policies: Sequence[str],
    sizes: Sequence[int],
    repeat: int,
    progress: Callable[[Arrival], None],
) -> list[Arrival]:
    measured = []
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(WORKERS):
            await stack.enter_async_context(Worker(address, nthreads=1, dashboard=False))
        client = await stack.enter_async_context(Client(address, asynchronous=True))
        for policy in policies:
            for make in SHAPES.values():
                await _arrive(client, policy, make, side_for("reduction", _WARM))
        for shape, make in SHAPES.items():
            for asked in sizes:
                side = side_for(shape, asked)
                tasks = tasks_of(make(side))
                for repetition in range(repeat):
                    for policy in policies if repetition % 2 == 0 else reversed(policies):
                        for again, times in enumerate(await _arrive(client, policy, make, side)):
                            found = Arrival(shape, asked, policy, tasks, *times, again=bool(again))
                            measured.append(found)
                            progress(found)
    return measured


async def _arrive(
    client: Client, policy: str, make: Callable[[int], Any], side: int
) -> list[tuple[float, float]]:
    """Return `Arrival.seconds` and `turn` of a program that is sent twice under a policy."""
    plugin = policy_plugin(policy)
    scheduler: Any = client.scheduler
    if plugin is not None:
        await client.register_plugin(plugin)
    try:
        await client.compute(_grid(2).sum())  # what workers start with is not measured
        await asyncio.sleep(_SET_UP)
        await scheduler.forget()
        return [await _first_task(client, make(side)) for _ in range(2)]
    finally:
        if plugin is not None:
            await client.unregister_scheduler_plugin(plugin.name)
            await scheduler.settled()


async def _first_task(client: Client, program: Any) -> tuple[float, float]:
    """Send a graph; drop it when its first task is sent."""
    scheduler: Any = client.scheduler
    reasons = await scheduler.watch()
    if any(reasons):
        raise RuntimeError(f"the plugin is off: {reasons}")
    gc.collect()
    start = time.perf_counter()
    future = client.compute(program)
    sent, turn = await scheduler.first_sent()
    future.release()
    await scheduler.emptied()
    return sent - start, turn


async def _schedule() -> None:
    """Run a scheduler that tells when its first task was sent; the parent kills it."""
    async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        sent: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        watched: dict[str, Any] = {}

        def watching(send: Any) -> Any:
            def watch(*messages: Any) -> None:
                send(*messages)
                first = any(message.get("op") == "compute-task" for message in messages)
                if first and not sent.done():
                    sent.set_result(time.perf_counter())

            return watch

        async def arm() -> list[str | None]:
            nonlocal sent
            sent = asyncio.get_running_loop().create_future()
            for address, comm in scheduler.stream_comms.items():
                if watched.get(address) is not comm:
                    watched[address] = comm
                    comm.send = watching(comm.send)
            plugins[:] = filter(None, [scheduler.plugins.get("marsched")])
            turns[:] = [0.0]
            for plugin in plugins:
                plugin.update_graph = timing(type(plugin).update_graph.__get__(plugin))
            gc.collect()
            return [plugin.report()["reason"] for plugin in plugins]

        def timing(plan: Any) -> Any:
            def timed(*args: Any, **kwargs: Any) -> None:
                start = time.perf_counter()
                plan(*args, **kwargs)
                turns.append(time.perf_counter() - start)

            return timed

        async def first_sent() -> tuple[float, float]:
            return await sent, max(turns)

        async def emptied() -> None:
            while scheduler.tasks:
                await asyncio.sleep(0.01)

        plugins: list[Any] = []
        turns: list[float] = []

        async def settled() -> None:
            """Wait until the workers are rid of the plugin that was there at last."""
            await plugins.pop().workers_told()

        async def forget() -> None:
            memoization.forget()

        handlers = {"watch": arm, "first_sent": first_sent, "emptied": emptied, "settled": settled}
        scheduler.handlers.update(handlers, forget=forget)
        print(json.dumps({"address": scheduler.address}), flush=True)
        await scheduler.finished()


def cells(measured: Sequence[Arrival]) -> list[list[str]]:
    """Return the table of medians and ratios to stock, its head first."""
    table = [["shape", "tasks", "graph", "policy", "ms", "x", "more ms", "turn ms", "verdict"]]
    for shape, asked, again in dict.fromkeys((a.shape, a.asked, a.again) for a in measured):
        own = [a for a in measured if (a.shape, a.asked, a.again) == (shape, asked, again)]
        found = {
            policy: median(a.seconds for a in own if a.policy == policy) or math.nan
            for policy in dict.fromkeys(a.policy for a in own)
        }
        stock = found.get(STOCK, math.nan)
        for policy, seconds in found.items():
            more = seconds - stock
            verdict = "-" if policy == STOCK else "met" if seconds <= BAR * stock else "not met"
            turn = max(a.turn for a in own if a.policy == policy)
            shown = [f"{1e3 * seconds:.1f}", f"{seconds / stock:.2f}"]
            shown += [f"{1e3 * more:.1f}", f"{1e3 * turn:.1f}"]
            graph = "again" if again else "new"
            table.append([shape, str(own[0].tasks), graph, policy, *shown, verdict])
    return table


if __name__ == "__main__":
    asyncio.run(_schedule())
