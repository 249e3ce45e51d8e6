"""Adoption on the scheduler: requests to adopters, and records of where results are."""

import asyncio
from types import SimpleNamespace

import pytest
from distributed.utils_test import async_poll_for, gen_cluster, inc

from dask_marsched.host.restart.process import next_run
from dask_marsched.host.scheduler.adoption import Adoption


@gen_cluster(client=True)
async def test_results_released_in_the_meantime_are_not_adopted(c, s, a, b):
    asked = []

    async def adopt(chunks, gone):
        asked.append(([key for key, _, _ in chunks], gone))
        return {"status": "OK", "adopted": [], "offer": 0}

    b.handlers["marsched_adopt"] = adopt
    b.stream_handlers["marsched_adopted"] = lambda **message: None
    x, y = futures = c.map(inc, range(2), workers=[a.address])
    await c.gather(futures)
    adoption = Adoption(s, caught=None)
    batch = [s.tasks[future.key] for future in futures]
    for future in futures:
        adoption.announced(a.address, future.key, None, 1)
    adoption.forget(x.key)
    adopter = s.workers[b.address]
    assert not await adoption._ask(adopter, batch, a.address)
    assert asked == [([y.key], a.address)]
    adoption.forget(y.key)
    assert not await adoption._ask(adopter, batch, a.address)
    assert len(asked) == 1


async def test_a_key_that_means_another_task_meanwhile_is_not_adopted():
    dead, adopter = "tcp://127.0.0.1:1", SimpleNamespace(address="tcp://127.0.0.1:2")
    stays, changes = (SimpleNamespace(key=key, state="memory") for key in ("stays", "changes"))
    sent, added = [], []

    async def adopt(chunks, gone):
        scheduler.tasks["changes"] = SimpleNamespace(key="changes", state="memory")
        return {"status": "OK", "adopted": [key for key, *_ in chunks], "offer": 7}

    scheduler = SimpleNamespace(
        tasks={"stays": stays, "changes": changes},
        workers={adopter.address: adopter},
        rpc=lambda address: SimpleNamespace(marsched_adopt=adopt),
        worker_send=lambda address, message: sent.append(message),
        add_keys=lambda worker, keys, stimulus_id: added.append(keys),
    )
    failures = []
    adoption = Adoption(scheduler, lambda where, error: failures.append(error))
    adoption._kept = {key: {dead: ("handle", 1)} for key in scheduler.tasks}
    assert await adoption._ask(adopter, [stays, changes], dead) == ["stays"]
    (message,) = sent
    assert message["run_id"] < next_run()
    assert (message["keys"], message["offer"], message["gone"]) == (["stays"], 7, dead)
    assert added == [["stays"]]
    del scheduler.workers[adopter.address]  # it died after its answer
    adoption._kept["stays"] = {dead: ("handle", 1)}
    assert await adoption._ask(adopter, [stays], dead) is None
    assert len(sent) == 1
    assert failures == []


@gen_cluster(client=True)
async def test_late_announcements_are_ignored(c, s, a, b):
    x = c.submit(inc, 1)
    await x
    adoption = Adoption(s, caught=None)
    adoption.announced(a.address, "forgotten", None, 1)
    adoption.announced("tcp://127.0.0.1:1", x.key, None, 1)
    assert not adoption._kept


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1), ("127.0.0.1", 1), ("127.0.0.2", 1)])
async def test_replicas_on_several_machines_are_recorded_separately(c, s, a, b, there):
    """A worker of another machine announced a replica and dropped it."""
    asked = []

    async def adopt(chunks, gone):
        asked.append(([*chunks], gone))
        b.update_data({key: 2 for key, _, _ in chunks})
        return {"status": "OK", "adopted": [key for key, _, _ in chunks], "offer": 0}

    b.handlers["marsched_adopt"] = adopt
    b.stream_handlers["marsched_adopted"] = lambda **message: None
    x = c.submit(inc, 1, workers=[a.address])
    await c.replicate(x, workers=[a.address, there.address])
    ts = s.tasks[x.key]
    adoption = Adoption(s, caught=None)
    adoption.adopters.ready(b.address)
    adoption.announced(a.address, x.key, "of a", 1)
    adoption.announced(there.address, x.key, "of there", 2)
    assert adoption.keepers(ts) == [s.workers[a.address], s.workers[there.address]]
    s.request_remove_replicas(there.address, [x.key], stimulus_id="test")
    await async_poll_for(lambda: len(ts.who_has) == 1, 5)
    assert adoption.keepers(ts) == [s.workers[a.address]]
    await adoption._remove_worker(a.address, stimulus_id="died")
    assert asked == [([(x.key, "of a", 1)], a.address)]
    assert adoption.keepers(ts) == [s.workers[b.address]]
    assert adoption._kept == {x.key: {b.address: ("of a", 1), there.address: ("of there", 2)}}
    # The announcements of a worker are forgotten with it.
    await adoption._remove_worker(there.address, stimulus_id="died")
    await adoption._remove_worker(b.address, stimulus_id="died")
    assert adoption._kept == {}


@gen_cluster(client=True)
async def test_a_worker_that_comes_back_waits_until_its_results_are_adopted(c, s, a, b):
    """It had lost its connection only, and Dask would raise as it is still registered."""
    asked, gate, there = asyncio.Event(), asyncio.Event(), []

    async def adopt(chunks, gone):
        asked.set()
        await gate.wait()
        return {"status": "OK", "adopted": [], "offer": 0}

    async def register(comm, address):
        there.append(address in s.workers)

    b.handlers["marsched_adopt"] = adopt
    b.stream_handlers["marsched_adopted"] = lambda **message: None
    x = c.submit(inc, 1, workers=[a.address], allow_other_workers=True)
    await x
    s.handlers["register-worker"], stock = register, s.handlers["register-worker"]
    adoption = Adoption(s, caught=None)
    adoption.departed.install()
    adoption.adopters.ready(b.address)
    adoption.announced(a.address, x.key, None, 1)
    removal = asyncio.create_task(adoption._remove_worker(a.address, stimulus_id="test"))
    await asked.wait()
    comes = asyncio.create_task(s.handlers["register-worker"](None, address=a.address))
    gate.set()
    await asyncio.gather(removal, comes)
    assert there == [False]
    adoption.uninstall()
    s.handlers["register-worker"] = stock


@gen_cluster(client=True)
async def test_only_a_worker_that_is_there_is_told_that_it_is(c, s, a, b):
    """A registration lasts as long as its worker: later errors are Dask's to report."""
    told = []

    class Comm:
        async def write(self, message):
            told.append(message["message"])

    async def fail(comm, address):
        raise ValueError("of a handler")

    s.handlers["register-worker"], stock = fail, s.handlers["register-worker"]
    departed = Adoption(s, caught=None).departed
    departed.install()
    with pytest.raises(ValueError, match="of a handler"):
        await s.handlers["register-worker"](Comm(), address="tcp://127.0.0.1:1")
    assert not told
    await s.handlers["register-worker"](Comm(), address=a.address)
    assert told == ["of a handler"]
    departed.uninstall()
    s.handlers["register-worker"] = stock
