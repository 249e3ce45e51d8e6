"""Which P2P shuffles a worker ends that has been away from its scheduler."""

from __future__ import annotations

import asyncio

import dask
import dask.array as da
from distributed import Event
from distributed.utils_test import async_poll_for, gen_cluster

from dask_marsched.host.worker import lost_shuffles
from tests.host.worker.test_shuffle_buffers import ROWS, row


def columns():
    x = da.map_blocks(row, chunks=((1,) * ROWS, (60_000,)), dtype=float)
    with dask.config.set({"array.chunk-size": 480_000}):  # or rows are joined before they are cut
        return x.rechunk((ROWS, 15_000), method="p2p").sum(axis=0)


def runs_of(worker):
    return worker.plugins["shuffle"].shuffle_runs


async def begun(worker):
    await async_poll_for(lambda: runs_of(worker)._active_runs, 10)
    return next(iter(runs_of(worker)._active_runs.values()))


@gen_cluster(client=True)
async def test_a_shuffle_that_goes_on_is_kept(c, s, a, b):
    total = c.compute(columns())
    run = await begun(b)
    await lost_shuffles.abandon_ended(b)
    assert runs_of(b)._active_runs == {run.id: run}
    await Event("go").set()
    assert (await total == sum(range(ROWS))).all()


@gen_cluster(client=True)
async def test_one_that_has_ended_is_abandoned(c, s, a, b):
    total = c.compute(columns())
    run = await begun(b)
    b.stream_handlers["shuffle-fail"] = lambda **message: None  # as if b were away
    total.release()
    await async_poll_for(lambda: not s.extensions["shuffle"].active_shuffles, 10)
    assert runs_of(b)._active_runs == {run.id: run}
    await lost_shuffles.abandon_ended(b)
    assert not runs_of(b)._active_runs
    await async_poll_for(lambda: run.closed, 10)
    await Event("go").set()


@gen_cluster(client=True)
async def test_an_answer_that_is_on_its_way_is_waited_for(c, s, a, b):
    total = c.compute(columns())
    run = await begun(b)
    runs, asked = runs_of(b), []
    fetch = runs._fetch

    async def noted(shuffle_id):
        asked.append(shuffle_id)
        return await fetch(shuffle_id)

    runs._fetch = noted
    async with runs._refresh_locks[run.id]:
        ends = asyncio.create_task(lost_shuffles.abandon_ended(b))
        await asyncio.sleep(0)  # a turn of the loop
        assert not asked
        assert s.extensions["shuffle"].active_shuffles.pop(run.id)
    await ends
    assert asked == [run.id]
    assert not runs._active_runs
    total.release()
    await Event("go").set()


@gen_cluster(client=True)
async def test_a_worker_whose_connection_broke_abandons_all(c, s, a, b):
    total = c.compute(columns())
    run = await begun(b)
    lost_shuffles.abandon_all(b)
    assert not runs_of(b)._active_runs
    await async_poll_for(lambda: run.closed, 10)
    total.release()
    await Event("go").set()


async def test_a_worker_without_shuffles_has_none_to_abandon():
    class Bare:
        plugins: dict[str, object] = {}

    lost_shuffles.abandon_all(Bare)
    await lost_shuffles.abandon_ended(Bare)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_what_is_missing_is_named(c, s, a):
    assert lost_shuffles.misfits(a) == []
    a.plugins["shuffle"].shuffle_runs, stock = object(), runs_of(a)
    assert len(lost_shuffles.misfits(a)) == 4
    a.plugins["shuffle"].shuffle_runs = stock
