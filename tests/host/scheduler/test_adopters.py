"""Adopters: the workers that can map the results of a dead worker."""

import asyncio

from distributed.core import Status
from distributed.utils_test import gen_cluster

from dask_marsched.host.scheduler.adopters import READY, Adopters

THREE = [("127.0.0.1", 1)] * 3


@gen_cluster(nthreads=THREE)
async def test_ready_workers_from_before_and_after_the_start(s, *workers):
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
async def test_there_is_no_wait_without_a_nanny_that_answers(s, *workers):
    a, _, _ = (s.workers[worker.address] for worker in workers)
    await asyncio.wait_for(Adopters(s).wait(a, 60), 5)
    a.nanny = "tcp://127.0.0.1:1"  # does not answer
    await asyncio.wait_for(Adopters(s).wait(a, 60), 10)


@gen_cluster(nthreads=THREE)
async def test_a_wait_ends_when_a_worker_is_ready_or_all_is_cleared(s, *workers):
    a, b, _ = (s.workers[worker.address] for worker in workers)
    a.nanny = workers[2].address  # any server that answers
    adopters = Adopters(s)
    waits = asyncio.create_task(adopters.wait(a, 60))
    while not adopters._awaited:
        await asyncio.sleep(0)
    adopters.ready(b.address)
    await asyncio.wait_for(waits, 5)
    assert adopters.of(a) == [b]
    waits = asyncio.create_task(adopters.wait(a, 60))
    while not adopters._awaited:
        await asyncio.sleep(0)
    adopters.clear()
    await asyncio.wait_for(waits, 5)
    assert not adopters._awaited
