"""Who can take over the results of a worker that died."""

import asyncio

from distributed.core import Status
from distributed.utils_test import gen_cluster

from dask_marsched.host.scheduler.adopters import READY, Adopters

THREE = [("127.0.0.1", 1)] * 3


@gen_cluster(nthreads=THREE)
async def test_who_shares_memory_since_before_and_since(s, *workers):
    a, b, c = (s.workers[worker.address] for worker in workers)
    s.log_event(READY, a.address)  # as the plugin was being started
    adopters = Adopters(s)
    assert adopters.of(c) == [a]
    adopters.ready(b.address)
    assert set(adopters.of(c)) == {a, b}
    assert adopters.of(b) == [a]
    adopters.gone(a.address)
    assert adopters.of(c) == [b]
    s.handle_worker_status_change(Status.paused, b, "test")
    assert adopters.of(c) == []


@gen_cluster(nthreads=THREE)
async def test_nobody_is_waited_for_where_nobody_comes(s, *workers):
    """These workers have no nanny that could start another."""
    a, _, _ = (s.workers[worker.address] for worker in workers)
    async with asyncio.timeout(5):
        await Adopters(s).wait(a, 60)
    a.nanny = "tcp://127.0.0.1:1"  # one that does not answer
    async with asyncio.timeout(10):
        await Adopters(s).wait(a, 60)


@gen_cluster(nthreads=THREE)
async def test_who_waits_goes_on_when_one_is_ready(s, *workers):
    a, b, _ = (s.workers[worker.address] for worker in workers)
    a.nanny = workers[2].address  # whatever answers
    adopters = Adopters(s)
    waits = asyncio.create_task(adopters.wait(a, 60))
    while not adopters._awaited:
        await asyncio.sleep(0)
    adopters.ready(b.address)
    async with asyncio.timeout(5):
        await waits
    assert adopters.of(a) == [b]
    waits = asyncio.create_task(adopters.wait(a, 60))
    while not adopters._awaited:
        await asyncio.sleep(0)
    adopters.clear()
    async with asyncio.timeout(5):
        await waits
    assert not adopters._awaited
