"""Random graphs while workers join, retire, pause and die: every result right, nothing hangs.

The examples are the same in every run. ``MARSCHED_EXAMPLES=500`` tries more of them, and
``MARSCHED_SEED=1`` others.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from dask.delayed import Delayed, delayed
from distributed import Client, Scheduler, SchedulerPlugin, Worker
from distributed.core import Status
from distributed.utils_test import async_poll_for
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from tests.harness import planned_cluster, plugin_of, report_of

EXAMPLES = int(os.environ.get("MARSCHED_EXAMPLES", "50"))
SEED = os.environ.get("MARSCHED_SEED")
#: Seconds after which an example has hung.
TIMEOUT = 30
CONFIG = {
    "distributed.scheduler.allowed-failures": 1000,
    "distributed.worker.memory.pause": False,
}

ACTIONS = ("join", "retire", "kill", "pause", "resume", "replace all")


@dataclass(frozen=True)
class Node:
    """A task of a random graph: the tasks it reads, its duration in seconds, its bytes."""

    inputs: tuple[int, ...]
    seconds: float
    nbytes: int
    layer: int


@dataclass(frozen=True)
class Scenario:
    """A graph, what is wanted of it and in how many graphs, the cluster, what befalls it."""

    nodes: tuple[Node, ...]
    graphs: tuple[tuple[int, ...], ...]
    threads: tuple[int, ...]
    saturation: float
    policies: dict[str, str]
    actions: tuple[tuple[int, str, int], ...]


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    # One seed decides on the many small things: drawing each of them takes longer than the run.
    rng = random.Random(draw(st.integers(0, 2**32), label="seed"))
    count = draw(st.integers(1, 60), label="tasks")
    fan_in = draw(st.sampled_from([1, 2, 4, 12]), label="fan in")
    reach = draw(st.sampled_from([2, 8, 60]), label="how far back a task reads")
    roots = draw(st.sampled_from([0.1, 0.5, 0.8]), label="share of roots")
    slow = draw(st.booleans(), label="slow tasks")
    nodes: list[Node] = []
    for i in range(count):
        near = range(max(0, i - reach), i)
        n = 0 if not near or rng.random() < roots else rng.randint(1, min(fan_in, len(near)))
        inputs = tuple(rng.sample(near, n))
        layer = max((nodes[j].layer + 1 for j in inputs), default=0)
        seconds = rng.choice([0.0, 0.001, 0.005]) if slow else 0.0
        nodes.append(Node(inputs, seconds, rng.choice([0, 10, 10_000, 100_000]), layer))
    graphs = tuple(
        tuple(rng.sample(range(count), rng.randint(1, min(count, 5))))
        for _ in range(draw(st.integers(1, 3), label="graphs"))
    )
    actions = tuple(
        sorted((rng.randint(0, count), rng.choice(ACTIONS), rng.randint(0, 9)) for _ in range(n))
        if (n := draw(st.integers(0, 5), label="actions"))
        else ()
    )
    return Scenario(
        tuple(nodes),
        graphs,
        tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=4), label="threads")),
        draw(st.sampled_from([1.0, 1.1, math.inf]), label="saturation"),
        {
            "assignment": draw(st.sampled_from(["units", "dfs", "bfs"])),
            "ordering": draw(st.sampled_from(["dask", "mars"])),
            "fusion": draw(st.sampled_from(["off", "chains", "subgraphs"])),
        },
        actions,
    )


# ---- What is computed ------------------------------------------------------------------------


def combine(i: int, seconds: float, nbytes: int, *inputs: tuple[int, bytes]) -> tuple[int, bytes]:
    time.sleep(seconds)  # workload
    return (i + sum((k + 1) * value for k, (value, _) in enumerate(inputs))) % 10007, bytes(nbytes)


def expected_values(nodes: tuple[Node, ...]) -> list[int]:
    values: list[int] = []
    for i, node in enumerate(nodes):
        values.append(combine(i, 0, 0, *[(values[j], b"") for j in node.inputs])[0])
    return values


def delayed_graph(nodes: tuple[Node, ...]) -> list[Delayed]:
    tasks: list[Delayed] = []
    for i, node in enumerate(nodes):
        name = f"layer{node.layer}-{i}"
        inputs = [tasks[j] for j in node.inputs]
        tasks.append(delayed(combine)(i, node.seconds, node.nbytes, *inputs, dask_key_name=name))
    return tasks


# ---- What befalls the cluster ----------------------------------------------------------------


class Progress(SchedulerPlugin):
    """Counts results, so that things happen in the middle of the work and not at some time."""

    name = "progress"

    def __init__(self) -> None:
        self.results = 0
        self.changed = asyncio.Event()

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        self.results += finish == "memory"
        self.changed.set()

    async def reach(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()


class Fate:
    """Carries out the actions of a scenario; at least one worker runs at the end."""

    def __init__(self, scheduler: Scheduler, workers: list[Worker], stack: Any) -> None:
        self.scheduler = scheduler
        self.workers = workers
        self.stack = stack

    async def act(self, action: str, pick: int) -> None:
        running = [w for w in self.workers if w.status == Status.running]
        chosen = running[pick % len(running)] if running else None
        if action == "join":
            await self.join(1 + pick % 3)
        elif action == "resume":
            self.resume()
        elif action == "replace all":
            for worker in list(self.workers):
                await self.kill(worker)
            await self.join(2)
        elif len(running) > 1 and chosen is not None:
            if action == "kill":
                await self.kill(chosen)
            elif action == "pause":
                chosen.status = Status.paused
                state = self.scheduler.workers[chosen.address]
                await async_poll_for(lambda: state not in self.scheduler.running, TIMEOUT)
            else:
                self.workers.remove(chosen)
                await self.scheduler.retire_workers([chosen.address], stimulus_id="test")

    async def join(self, threads: int) -> None:
        worker = Worker(self.scheduler.address, nthreads=threads)
        self.workers.append(await self.stack.enter_async_context(worker))

    async def kill(self, worker: Worker) -> None:
        """End a worker without a word to the scheduler."""
        self.workers.remove(worker)
        worker.batched_stream.abort()
        await worker.close(executor_wait=False, nanny=False)

    def resume(self) -> None:
        for worker in self.workers:
            if worker.status == Status.paused:
                worker.status = Status.running

    async def settle(self) -> None:
        self.resume()
        if not any(w.status == Status.running for w in self.workers):
            await self.join(1)


def _due(s: Scheduler, progress: Progress, results: int) -> bool:
    # What was sent to a paused worker stays there; perhaps all the rest depends on it.
    stalled = not s.queued and not any(ws.processing for ws in s.running)
    paused = len(s.running) < len(s.workers)
    return progress.results >= results or (paused and stalled)


def _unfinished(s: Scheduler) -> bool:
    return any(
        ts.state in ("waiting", "queued", "processing", "no-worker") for ts in s.tasks.values()
    )


async def live_through(c: Client, s: Scheduler, workers: list[Worker], given: Scenario) -> None:
    s.WORKER_SATURATION = given.saturation
    progress = Progress()
    s.add_plugin(progress)
    tasks = delayed_graph(given.nodes)
    values = expected_values(given.nodes)
    futures = [c.compute([tasks[i] for i in wanted]) for wanted in given.graphs]
    results = asyncio.gather(*[c.gather(graph) for graph in futures])
    async with contextlib.AsyncExitStack() as stack:
        fate = Fate(s, list(workers), stack)
        for after, action, pick in given.actions:
            reached = asyncio.ensure_future(progress.reach(partial(_due, s, progress, after)))
            await asyncio.wait({reached, results}, return_when=asyncio.FIRST_COMPLETED)
            reached.cancel()
            await fate.act(action, pick)
            s.validate_state()
        await fate.settle()
        for wanted, got in zip(given.graphs, await results, strict=True):
            assert [value for value, _ in got] == [values[i] for i in wanted]
            assert [len(data) for _, data in got] == [given.nodes[i].nbytes for i in wanted]
        s.validate_state()
        # What was lost after the client had it may still be computed again.
        await progress.reach(lambda: not _unfinished(s))
        assert not s.queued
        assert not len(plugin_of(s).policies.withholding)
        assert report_of(s)["exceptions"] == {}


def run(scenario: Scenario) -> None:
    @planned_cluster(
        [("127.0.0.1", n) for n in scenario.threads],
        plugin=lambda: MarsSchedulerPlugin(**scenario.policies),
        timeout=TIMEOUT,
        config=CONFIG,
    )
    async def on_cluster(c: Client, s: Scheduler, *workers: Worker) -> None:
        await live_through(c, s, list(workers), scenario)

    on_cluster()


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=SEED is None,
    database=None,
    print_blob=True,
    # To shrink an example that hangs takes as long as it hangs, many times over.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(scenario=scenarios())
def check_scenarios(scenario: Scenario) -> None:
    run(scenario)


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT + 20 * EXAMPLES)
def test_random_graphs() -> None:
    (check_scenarios if SEED is None else seed(int(SEED))(check_scenarios))()
