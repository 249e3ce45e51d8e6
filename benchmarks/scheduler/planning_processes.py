"""The processes of the planning benchmark: a scheduler by itself, and its workers with a client.

Run as ``python -m benchmarks.scheduler.planning_processes scheduler POLICY`` and ``... load
ADDRESS TASKS``. The scheduler prints its address, then one line of JSON, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dask.base import collections_to_expr
from distributed import Client, Scheduler, Worker

from benchmarks.workloads import get
from dask_marsched.bench.cluster import policy_plugin

WORKERS = 4
WARM_TASKS = 50


def program(steps: int) -> tuple[Any, ...]:
    """Return means over time of three products of two fields, ``steps`` chunks each."""
    shape, chunks = (steps, 4, 4), (1, 4, 4)
    u, v = (da.full(shape, value, chunks=chunks).map_blocks(np.copy) for value in (1.0, 2.0))
    workload = get("quadratic-means")
    return workload.expression(None, u, v)


def steps_for(tasks: int) -> int:
    """Return the number of time steps at which the program has about ``tasks`` tasks."""
    sample = 256
    graph = collections_to_expr(list(program(sample))).optimize().__dask_graph__()
    return max(2, round(tasks * sample / len(graph)))


def resident(field: str) -> int:
    """Return a field of this process' memory status, such as VmRSS or VmHWM, bytes."""
    text = Path("/proc/self/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


class Stopwatch:
    """Runs from the arrival of a graph at a scheduler to its first task sent to a worker."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.done = asyncio.Event()
        self.result: dict[str, Any] = {}
        self._start = 0.0
        self._resident = 0

    def arm(self) -> None:
        """Watch the message that brings a graph and those that go to the workers."""
        handle = self.scheduler.stream_handlers["update-graph"]

        async def arrived(*args: Any, **kwargs: Any) -> None:
            Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
            self._resident = resident("VmRSS")
            self._start = time.perf_counter()
            await handle(*args, **kwargs)

        self.scheduler.stream_handlers["update-graph"] = arrived
        for comm in self.scheduler.stream_comms.values():
            comm.send = self._watch(comm.send)  # type: ignore[method-assign]  # to watch it

    def _watch(self, send: Any) -> Any:
        def watched(*messages: Any) -> None:
            send(*messages)
            first = any(message.get("op") == "compute-task" for message in messages)
            if first and not self.result:
                self.result = {
                    "seconds": time.perf_counter() - self._start,
                    "memory": resident("VmHWM") - self._resident,
                    "tasks": len(self.scheduler.tasks),
                }
                self.done.set()

        return watched


async def schedule(policy: str) -> None:
    """Run a scheduler until it has planned one graph after the warm-up; print the result."""
    async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        plugin = policy_plugin(policy)
        if plugin is not None:
            await scheduler.register_scheduler_plugin(plugin=plugin, idempotent=True)
        print(json.dumps({"address": scheduler.address}), flush=True)
        # The client asks for this after its warm-up, and sends the graph once it has the answer.
        stopwatch = Stopwatch(scheduler)

        async def arm() -> None:
            while scheduler.tasks:  # those of the warm-up
                await asyncio.sleep(0.01)
            stopwatch.arm()

        scheduler.handlers["arm"] = arm
        await stopwatch.done.wait()
        print(json.dumps(stopwatch.result), flush=True)


async def load(address: str, tasks: int) -> None:
    """Give a scheduler its workers, a warm-up, and a graph of about ``tasks`` tasks."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(WORKERS):
            await stack.enter_async_context(Worker(address, nthreads=1, dashboard=False))
        client = await stack.enter_async_context(Client(address, asynchronous=True))
        warm = client.compute(list(program(steps_for(WARM_TASKS))))
        await asyncio.gather(*warm)
        del warm
        graph = list(program(steps_for(tasks)))
        await client.scheduler.arm()
        futures = client.compute(graph)
        await asyncio.gather(*futures)  # the parent process ends this one long before


def main() -> None:
    """Run the process that the command line names."""
    role, *arguments = sys.argv[1:]
    if role == "scheduler":
        asyncio.run(schedule(arguments[0]))
    else:
        asyncio.run(load(arguments[0], int(arguments[1])))


if __name__ == "__main__":
    main()
