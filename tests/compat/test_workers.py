"""Workers that come late, go, pause, retire or die while a graph runs; data that moves."""

import asyncio
import os
import signal
from collections import Counter

import dask.array as da
import numpy as np
import pytest
from distributed import Client, Event, KilledWorker, LocalCluster, Nanny, Worker, wait
from distributed.core import Status
from distributed.utils_test import async_poll_for, gen_test, inc

from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from tests.harness import TIMEOUT, check, planned_cluster, plugin_of, report_of

FOUR_WORKERS = [("127.0.0.1", 1)] * 4


#: The memory monitor would let them run again at once.
PAUSED_BY_HAND = {"distributed.worker.memory.pause": False}


def gated(block: np.ndarray, gate: str) -> np.ndarray:
    Event(gate).wait()
    return block + 1


def array_behind(gate: str, size: int = 40) -> da.Array:
    """Blocks that wait for an event; what follows them is a sum over rows."""
    x = da.ones((size, size), chunks=5)
    return x.map_blocks(gated, gate, dtype=float, name="gated").sum(axis=1)


async def some_done(s, count: int = 4) -> None:
    await async_poll_for(
        lambda: sum(ts.state == "memory" for ts in s.tasks.values()) >= count, 10, period=0.001
    )


def pause(worker: Worker) -> None:
    worker.status = Status.paused


# ---- Coming ----------------------------------------------------------------------------------


@planned_cluster([])
async def test_graph_before_the_first_worker(c, s):
    x = da.ones((40, 40), chunks=5)
    future = c.compute((x + 1).sum(axis=0))
    few = c.submit(inc, 1)
    await async_poll_for(lambda: bool(s.queued), 5)
    async with Worker(s.address, nthreads=2), Worker(s.address, nthreads=1):
        np.testing.assert_array_equal(await future, np.full(40, 80.0))
        assert await few == 2


def breadth_first():
    return MarsSchedulerPlugin(assignment="bfs")


def depth_first():
    return MarsSchedulerPlugin(assignment="dfs")


@pytest.mark.parametrize("assignment", ["units", "dfs"])
@planned_cluster([("127.0.0.1", 1)], plugin=breadth_first)
async def test_worker_that_joins_gets_work(c, s, a, assignment):
    with pytest.warns(UserWarning, match="overwriting"):
        await c.register_plugin(MarsSchedulerPlugin(assignment=assignment))
    future = c.compute(array_behind("go"))
    await async_poll_for(lambda: a.state.executing_count == 1, 5)
    async with Worker(s.address, nthreads=1) as b:
        await async_poll_for(lambda: b.state.executing_count == 1, 5)
        await Event("go").set()
        np.testing.assert_array_equal(await future, np.full(40, 80.0))


# ---- Going -----------------------------------------------------------------------------------


@pytest.mark.parametrize("assignment", ["units", "bfs"])
@planned_cluster(FOUR_WORKERS, plugin=depth_first)
async def test_worker_that_leaves_while_a_graph_runs(c, s, *workers, assignment):
    with pytest.warns(UserWarning, match="overwriting"):
        await c.register_plugin(MarsSchedulerPlugin(assignment=assignment))
    future = c.compute(array_behind("go"))
    await async_poll_for(lambda: all(w.state.executing_count for w in workers), 5)
    await workers[0].close(executor_wait=False)
    await Event("go").set()
    await workers[1].close(executor_wait=False)
    np.testing.assert_array_equal(await future, np.full(40, 80.0))


@planned_cluster(FOUR_WORKERS)
async def test_worker_lost_with_results_on_it(c, s, *workers):
    x = da.ones((40, 40), chunks=5).map_blocks(inc, dtype=float)
    kept = c.persist(x)
    await wait(kept)
    total = c.compute((kept + kept.T).sum())
    await workers[2].close(executor_wait=False)
    assert await total == 6400
    assert len(s.workers) == 3
    np.testing.assert_array_equal(await c.compute(kept), np.full((40, 40), 2.0))


@pytest.mark.extended
@planned_cluster([("127.0.0.1", 1)] * 2, Worker=Nanny, timeout=60)
async def test_worker_process_killed(c, s, a, b):
    def compute(block: np.ndarray, gate: str) -> np.ndarray:
        Event(gate).wait()
        return block + 1

    x = da.ones((20, 20), chunks=5).map_blocks(compute, "go", dtype=float)
    future = c.compute(x.sum(axis=1))
    await async_poll_for(lambda: all(ws.processing for ws in s.workers.values()), 20)
    os.kill(a.pid, signal.SIGKILL)
    await async_poll_for(lambda: len(s.workers) == 1, 20)
    await Event("go").set()
    np.testing.assert_array_equal(await future, np.full(20, 40.0))


@planned_cluster(FOUR_WORKERS)
async def test_retired_worker_gets_no_more_work_and_keeps_no_data(c, s, *workers):
    future = c.compute(array_behind("go"))
    await async_poll_for(lambda: all(w.state.executing_count for w in workers), 5)
    retired = asyncio.create_task(c.retire_workers([workers[0].address]))
    await async_poll_for(lambda: len(s.running) == 3, 5)
    await Event("go").set()
    np.testing.assert_array_equal(await future, np.full(40, 80.0))
    await retired
    assert workers[0].address not in s.workers


@planned_cluster(FOUR_WORKERS, config=PAUSED_BY_HAND)
async def test_paused_worker_gets_no_more_work(c, s, *workers):
    future = c.compute(array_behind("go"))
    await async_poll_for(lambda: all(w.state.executing_count for w in workers), 5)
    paused = s.workers[workers[0].address]
    sent = set(paused.processing)
    pause(workers[0])
    await async_poll_for(lambda: paused not in s.running, 5)
    await Event("go").set()
    # what had been sent to it cannot finish there before it runs again
    await async_poll_for(lambda: not s.queued and len(paused.processing) <= len(sent), 10)
    workers[0].status = Status.running
    np.testing.assert_array_equal(await future, np.full(40, 80.0))


@planned_cluster([("127.0.0.1", 1)] * 2, config=PAUSED_BY_HAND)
async def test_all_workers_paused_for_a_while(c, s, a, b):
    future = c.compute(array_behind("go"))
    await async_poll_for(lambda: a.state.executing_count and b.state.executing_count, 5)
    pause(a)
    pause(b)
    await async_poll_for(lambda: not s.running, 5)
    more = c.map(inc, range(10))
    await Event("go").set()
    await async_poll_for(lambda: len(s.queued) > 10, 5)
    a.status = b.status = Status.running
    np.testing.assert_array_equal(await future, np.full(40, 80.0))
    assert await c.gather(more) == list(range(1, 11))


@planned_cluster([("127.0.0.1", 1)] * 2)
async def test_all_workers_lost_and_others_come(c, s, a, b):
    future = c.compute(array_behind("go"))
    await async_poll_for(lambda: a.state.executing_count and b.state.executing_count, 5)
    await Event("go").set()
    await some_done(s)
    await a.close(executor_wait=False)
    await b.close(executor_wait=False)
    assert not s.workers
    async with Worker(s.address, nthreads=2):
        np.testing.assert_array_equal(await future, np.full(40, 80.0))


@planned_cluster(FOUR_WORKERS, config={"distributed.scheduler.allowed-failures": 0})
async def test_task_that_kills_its_workers(c, s, *workers):
    future = c.compute(array_behind("never"))
    await async_poll_for(lambda: all(w.state.executing_count for w in workers), 5)
    await s.remove_worker(workers[0].address, stimulus_id="test", close=False, expected=False)
    with pytest.raises(KilledWorker):
        await future
    await Event("never").set()


@pytest.mark.extended
@planned_cluster([("127.0.0.1", 1)] * 2, Worker=Nanny, timeout=60)
async def test_restart(c, s, a, b):
    x = da.ones((40, 40), chunks=5) + 1
    lost = c.persist(x)
    await wait(lost)
    running = c.compute(array_behind("never"))
    await async_poll_for(lambda: bool(s.queued), 10)
    await c.restart()
    assert not s.tasks
    assert not len(plugin_of(s).policies.withholding)
    assert await c.compute(x.sum()) == 3200
    del lost, running


# A worker that was told to fetch from one that has left meanwhile tries to connect for all of the
# timeout (stock Dask: 30 s, seen with and without the plugin); gen_cluster sets these 5 s too.
@gen_test(timeout=TIMEOUT, config={"distributed.comm.timeouts.connect": "5s"})
async def test_adaptive_scaling():
    """What is withheld makes Dask ask for workers; they get work, and go again."""
    async with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            dashboard_address=":0",
            asynchronous=True,
        ) as cluster,
        Client(cluster, asynchronous=True) as c,
    ):
        await c.register_plugin(MarsSchedulerPlugin())
        s = cluster.scheduler
        cluster.adapt(minimum=1, maximum=4, interval="20ms", target_duration="1s", wait_count=1)
        future = c.compute(array_behind("go"))
        await async_poll_for(lambda: sum(bool(w.processing) for w in s.workers.values()) == 4, 10)
        await Event("go").set()
        np.testing.assert_array_equal(await future, np.full(40, 80.0))
        await async_poll_for(lambda: len(s.workers) == 1, 10)
        assert await c.submit(inc, 1) == 2
        check(s)


# ---- Unequal ---------------------------------------------------------------------------------


@planned_cluster(
    [
        ("127.0.0.1", 1, {"memory_limit": "8 GiB"}),
        ("127.0.0.1", 4, {"memory_limit": "16 GiB"}),
        ("127.0.0.1", 2, {"memory_limit": 0}),
    ]
)
async def test_heterogeneous_workers(c, s, *workers):
    future = c.compute(array_behind("go"))
    await async_poll_for(
        lambda: [w.state.executing_count for w in workers] == [1, 4, 2], 5, period=0.005
    )
    # no more is sent ahead than stock Dask would send
    in_progress = [len(s.workers[w.address].processing) for w in workers]
    assert all(n <= most for n, most in zip(in_progress, [2, 5, 3], strict=True))
    await Event("go").set()
    np.testing.assert_array_equal(await future, np.full(40, 80.0))


@pytest.mark.parametrize("stealing", [True, False])
@planned_cluster()
async def test_stealing_on_and_off(c, s, *workers, stealing):
    extension = s.extensions["stealing"]
    if not stealing:
        await extension.stop()
    futures = c.map(lambda i: sum(range(i % 7 * 1000)), range(60))
    extension.balance()
    total = c.submit(sum, futures)
    assert await total == sum(sum(range(i % 7 * 1000)) for i in range(60))


@planned_cluster([("127.0.0.1", 1)] * 3, config={"distributed.scheduler.work-stealing": False})
async def test_scheduler_without_stealing(c, s, *workers):
    assert await c.compute((da.ones((40, 40), chunks=5) + 1).sum()) == 3200


@planned_cluster([("127.0.0.1", 1)] * 2)
async def test_stealing_of_tasks_that_read_the_same_input(c, s, a, b):
    source = await c.scatter(b"x" * 1000, workers=[a.address])
    futures = c.map(lambda data, i: len(data) + i, [source] * 30, range(30))
    s.extensions["stealing"].balance()
    assert await c.gather(futures) == [1000 + i for i in range(30)]


def wait_for(x, gate):
    return Event(gate).wait(timeout=30)


def let_go(x, gate):
    Event(gate).set()


@pytest.mark.extended
@planned_cluster([("127.0.0.1", 1)] * 2)
async def test_what_another_waits_for_does_not_stay_behind_it(c, s, a, b):
    """Both are with their input, and how long such tasks take is never known."""
    x = (await c.scatter([b"x"], workers=[a.address]))[0]
    waiting = c.submit(wait_for, x, "go")
    await async_poll_for(lambda: a.state.executing, 5)
    opening = c.submit(let_go, x, "go", key="opening")
    await async_poll_for(lambda: "opening" in s.tasks, 5)
    assert s.tasks["opening"].processing_on.address == a.address
    assert await waiting
    await opening


@planned_cluster(
    [("127.0.0.1", 1), ("127.0.0.1", 1, {"resources": {"GPU": 1}}),
     ("127.0.0.1", 1, {"resources": {"GPU": 1}})],
    config={"distributed.scheduler.work-stealing-interval": "1h"},
)  # fmt: skip
async def test_what_is_restricted_is_stolen_while_others_are_withheld(c, s, *workers):
    held = c.map(wait_for, range(40), ["go"] * 40)
    await async_poll_for(lambda: s.queued, 5)
    bound = c.submit(inc, 1, resources={"GPU": 1}, key="bound")
    await async_poll_for(lambda: "bound" in s.tasks, 5)
    engine = plugin_of(s)._engine
    assert engine.may_steal(s.tasks["bound"])
    assert not engine.may_steal(s.tasks[held[0].key])
    await Event("go").set()
    await c.gather([*held, bound])


# ---- Data that the user moves ----------------------------------------------------------------


@planned_cluster()
async def test_scatter_replicate_rebalance(c, s, a, b, d):
    data = await c.scatter(np.ones(1000), workers=[a.address])
    everywhere = await c.scatter(np.ones(10), broadcast=True)
    await c.replicate([data], n=2)
    sums = c.map(lambda x, y, i: x.sum() + y.sum() + i, [data] * 12, [everywhere] * 12, range(12))
    assert await c.gather(sums) == [1010 + i for i in range(12)]
    x = c.persist(da.ones((40, 40), chunks=5, name="x"))
    await wait(x)
    await c.rebalance()
    assert await c.compute(x.sum()) == 1600


@planned_cluster()
async def test_graph_on_scattered_data_stays_with_it(c, s, a, b, d):
    blocks = await c.scatter([np.full(1000, i) for i in range(12)])
    held = {f.key: next(iter(s.tasks[f.key].who_has)).address for f in blocks}
    done = c.map(np.sum, blocks)
    await wait(done)
    ran = {f.key: next(iter(s.tasks[f.key].who_has)).address for f in done}
    # A worker that is done may take one that waits for a busier one.
    assert sum((Counter(held.values()) - Counter(ran.values())).values()) <= 2
    assert await c.gather(done) == [1000 * i for i in range(12)]


@planned_cluster(
    config={
        "distributed.scheduler.active-memory-manager.start": False,
        "distributed.scheduler.active-memory-manager.interval": "5ms",
        "distributed.scheduler.active-memory-manager.measure": "managed",
    }
)
async def test_active_memory_manager(c, s, *workers):
    x = c.persist(da.ones((40, 40), chunks=5) + 1)
    # Started after: beside it Dask's `replicate` may lose what it copies, and fails.
    await c.replicate(x, n=3)
    assert all(len(s.tasks[key].who_has) == 3 for key in x.__dask_keys__()[0])
    await c.amm.start()
    total = c.compute((x + x.T).sum())
    assert await total == 6400
    await async_poll_for(lambda: all(len(ts.who_has or ()) <= 1 for ts in s.tasks.values()), 5)


@planned_cluster()
async def test_lost_input_is_computed_again_in_its_unit(c, s, *workers):
    """Results lost after their consumers had begun go back to the scheduler's queue."""
    x = da.ones((40, 40), chunks=5).map_blocks(inc, dtype=float, name="x")
    y = c.persist(x)
    await wait(y)
    future = c.compute(y.map_blocks(gated, "go", dtype=float, name="gated").sum(axis=1))
    await async_poll_for(lambda: all(w.state.executing_count for w in workers), 5)
    await workers[1].close(executor_wait=False)
    await Event("go").set()
    np.testing.assert_array_equal(await future, np.full(40, 120.0))
    assert sum(report_of(s)["withheld"].values()) > 64


@planned_cluster(FOUR_WORKERS)
async def test_p2p_rechunk_that_loses_a_worker(c, s, *workers):
    x = da.random.default_rng(0).random((80, 80), chunks=(80, 5)).map_blocks(inc, dtype=float)
    expected = x.compute(scheduler="sync")
    future = c.compute(x.rechunk((5, 80), method="p2p").map_blocks(inc, dtype=float))
    await some_done(s, 6)
    await workers[3].close(executor_wait=False)
    np.testing.assert_array_equal(await future, expected + 1)


@pytest.mark.parametrize("saturation", [0.5, 1.0])
@planned_cluster([("127.0.0.1", 4)] * 2, plugin=depth_first)
async def test_a_low_saturation_of_the_user_is_kept(c, s, a, b, saturation):
    s.WORKER_SATURATION = saturation
    with pytest.warns(UserWarning, match="overwriting"):
        await c.register_plugin(MarsSchedulerPlugin())
    future = c.compute(array_behind("go"))
    await async_poll_for(lambda: a.state.executing_count and b.state.executing_count, 5)
    most = int(saturation * 4)
    assert [len(ws.processing) for ws in s.workers.values()] == [most, most]
    await Event("go").set()
    np.testing.assert_array_equal(await future, np.full(40, 80.0))
