"""Much work with much going wrong: nothing hangs, and nothing of it is remembered for ever."""

import asyncio
import random
from collections.abc import Iterator, Sized
from typing import Any

import dask.array as da
import pytest
from dask.delayed import delayed
from distributed import Scheduler, Worker, wait
from distributed.core import Status
from distributed.utils_test import async_poll_for, inc

from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from tests.harness import planned_cluster, plugin_of

FOUR_WORKERS = [("127.0.0.1", 1)] * 4


def unreliable(i: int, seed: int) -> int:
    """Fail in one of ten cases, each time anew."""
    if random.random() < 0.1:
        raise RuntimeError(f"task {i} of {seed}")
    return i


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@planned_cluster(FOUR_WORKERS, timeout=100, config={"distributed.scheduler.allowed-failures": 1000})
async def test_two_thousand_tasks_with_failures_cancels_and_deaths(c, s, *workers, seed):
    rng = random.Random(seed)
    alive = list(workers)
    futures = c.map(
        unreliable,
        range(2000),
        [seed] * 2000,
        retries=30,
        key=[f"u{seed}-{i}" for i in range(2000)],
    )
    total = c.map(inc, futures[::2], key=[f"v{seed}-{i}" for i in range(1000)])
    cancelled: set[int] = set()
    for step in range(6):
        # even ones: the odd ones may be cancelled
        await wait(futures[300 * step : 300 * step + 40 : 2], return_when="FIRST_COMPLETED")
        chosen = rng.sample(range(1501, 2000, 2), 20)
        cancelled.update(chosen)
        await c.cancel([futures[i] for i in chosen])
        victim = alive.pop(rng.randrange(len(alive)))
        victim.batched_stream.abort()
        await victim.close(executor_wait=False)
        alive.append(await Worker(s.address, nthreads=rng.randint(1, 3)))
        s.validate_state()
    assert await c.gather(total) == [i + 1 for i in range(0, 2000, 2)]
    kept = [i for i in range(1, 2000, 2) if i not in cancelled]
    assert await c.gather([futures[i] for i in kept]) == kept
    del futures, total
    await async_poll_for(lambda: not s.tasks, 20)
    nothing_remembered(s)
    await asyncio.gather(*[w.close() for w in alive if w.status == Status.running])


# ---- What is remembered ----------------------------------------------------------------------


def containers(thing: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Sized]]:
    """All containers that our objects hold, by path; not those of distributed."""
    if id(thing) in seen or isinstance(thing, Scheduler | str | bytes):
        return
    seen.add(id(thing))
    if isinstance(thing, Sized):
        yield path, thing
    if not type(thing).__module__.startswith("dask_marsched"):
        return
    names = list(getattr(thing, "__dict__", ()))
    for cls in type(thing).__mro__:
        names.extend(getattr(cls, "__slots__", ()))
    for name in names:
        if hasattr(thing, name):
            yield from containers(getattr(thing, name), f"{path}.{name}", seen)


#: What is kept on purpose: counts by kind, and what belongs to the workers there are.
BOUNDED = (
    "counters",
    "settings",
    "_stock",
    "_undo",  # what was replaced
    "_running",
    "workers",
    "_joined",
    "free_slots",
    "_seen",  # the queues at the last look, until the next one
    "_given",  # workers that were given tasks before the last look
    "_moved",
    "_tenures",
    # histories of bounded length, and the names of kinds of errors
    "graphs",
    "_done",
    "_last",
    "_totals",
    "_names",
    # pictures and series of bounded length; what it holds by operand is asserted below
    "observer",
    # the transitions of the last stimulus
    "_transitions",
    # of the http server
    "_routes",
    # one for each scheduler that there is
    "_in_force",
    # plans by structure, a bounded number: the next graph like this one is not planned again
    "_remembered",
    # keys of joined tasks, a thousand more than twice those there are
    "_fused",
    # who registered the plugin, and what it replaced
    "origin",
    "registration",
)


def sizes(s: Scheduler) -> dict[str, int]:
    plugin = plugin_of(s)
    found = {}
    for path, container in containers(plugin, "plugin", set()):
        if not any(part in BOUNDED for part in path.split(".")):
            found[path] = len(container)
    return found


def nothing_remembered(s: Scheduler) -> None:
    left = {path: n for path, n in sizes(s).items() if n}
    assert not left
    observer = plugin_of(s).observer
    assert len(observer.graphs()) <= 100  # and it has gone through what it wrote down
    by_operand = {**observer._at, **observer._also, **observer._loose}
    assert not by_operand


async def mixed_work(c: Any, i: int) -> None:
    x = da.random.default_rng(i).random((30, 30), chunks=10)
    graphs = [(x + x.T).sum(), x.rechunk((30, 5)).mean(axis=0), delayed(sum)([delayed(inc)(i)] * 3)]
    futures = [*c.compute(graphs), *c.map(inc, range(20), key=[f"m{i}-{j}" for j in range(20)])]
    await wait(futures)


@pytest.mark.slow
@pytest.mark.parametrize("assignment", ["units", "dfs"])
@planned_cluster(FOUR_WORKERS, plugin=lambda: MarsSchedulerPlugin(assignment="bfs"), timeout=100)
async def test_nothing_is_left_of_graphs_that_are_released(c, s, *workers, assignment):
    with pytest.warns(UserWarning, match="overwriting"):
        await c.register_plugin(MarsSchedulerPlugin(assignment=assignment))
    for i in range(50):
        await mixed_work(c, i)
    await async_poll_for(lambda: not s.tasks, 20)
    assert plugin_of(s).report()["graphs_planned"] >= 100
    nothing_remembered(s)


@pytest.mark.extended
@planned_cluster(FOUR_WORKERS)
async def test_nothing_is_left_of_cancelled_graphs(c, s, *workers):
    for i in range(10):
        x = da.random.default_rng(i).random((100, 100), chunks=5)
        future = c.compute((x + x.T).sum())
        await async_poll_for(lambda: bool(s.queued), 10, period=0.001)
        await c.cancel(future)
        # The scheduler hears of it later. Until then what is queued tells nothing of the next
        # graph, and the cancelling of a graph that it still reads is lost, in stock Dask, too.
        await async_poll_for(lambda: not s.tasks, 20)
    nothing_remembered(s)


@pytest.mark.extended
@planned_cluster([("127.0.0.1", 1)])
async def test_nothing_is_left_of_workers_that_are_gone(c, s, a):
    for i in range(10):
        async with Worker(s.address, nthreads=1):
            await mixed_work(c, i)
    await async_poll_for(lambda: not s.tasks, 20)
    await mixed_work(c, 10)
    engine = plugin_of(s)._engine
    assert len(engine._running) == 1
    assert len(engine.dispatcher.free_slots.finished) <= 1
    assert len(engine.dispatcher.free_slots._free) <= 1
    assert len(engine.policies.withholding._moved) <= 1
    assert len(engine.policies.withholding._tenures) <= 1
    assert len(engine._joined) == 1
