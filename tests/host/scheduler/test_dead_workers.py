"""Dead workers that stay registered: distributed neither talks to them nor chooses them."""

import asyncio
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from distributed import wait
from distributed.comm import CommClosedError
from distributed.utils_test import async_poll_for, gen_cluster, inc

from dask_marsched.host.scheduler.adoption import Adoption
from tests.harness import planned_cluster


@contextmanager
def adopting(s, worker, adopter, future):
    """Have a worker's result adopted for as long as the gate that is yielded is closed."""
    asked, gate = asyncio.Event(), asyncio.Event()

    async def adopt(chunks, gone):
        asked.set()
        await gate.wait()
        return {"status": "OK", "adopted": [], "offer": 0}

    adopter.handlers["marsched_adopt"] = adopt
    adopter.stream_handlers["marsched_adopted"] = lambda **message: None
    adoption = Adoption(s, caught=pytest.fail)
    adoption.install()
    adoption.adopters.ready(adopter.address)
    adoption.announced(worker.address, future.key, None, 1)
    yield adoption, asked, gate
    adoption.uninstall()


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 3)
async def test_nobody_is_disconnected_by_messages_to_a_dead_worker(c, s, a, b, d):
    x = c.submit(inc, 1, key="x", workers=[a.address], allow_other_workers=True)
    y = c.submit(inc, 2, key="y", workers=[a.address])
    await wait([x, y])
    await c.replicate(y, workers=[a.address, b.address])
    stream, stock = s.stream_comms[a.address], s.broadcast
    with adopting(s, a, b, x) as (adoption, asked, gate):
        stream.abort()
        await asked.wait()
        assert a.address in s.workers
        with pytest.raises(CommClosedError):
            stream.send({"op": "free-keys", "keys": [], "stimulus_id": "test"})
        s.request_remove_replicas(a.address, ["y"], stimulus_id="test")
        assert s.tasks["y"].who_has == {s.workers[b.address]}
        assert set(await c.run(str)) == {b.address, d.address}
        there = {ws.address for ws in adoption.dead.left_out(s.workers.values())}
        assert there == {b.address, d.address}
        gate.set()
        await async_poll_for(lambda: a.address not in s.workers, 5)
    assert s.broadcast == stock
    assert s.handlers["broadcast"] == stock
    assert await c.submit(inc, 3) == 4


@planned_cluster([("127.0.0.1", 1)] * 2)
async def test_they_are_not_chosen_to_be_closed(c, s, a, b):
    assert set(s.workers_to_close(n=2)) == {a.address, b.address}
    dead = s.plugins["marsched"]._failover._adoption.dead
    stream = s.stream_comms[a.address]
    s.stream_comms[a.address] = SimpleNamespace(closed=lambda: True)
    dead.removing(a.address)
    assert s.workers_to_close(n=2) == [b.address]
    s.stream_comms[a.address] = stream


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_keeper_that_retires_does_not_keep(c, s, a, b):
    x = c.submit(inc, 1, key="x", workers=[a.address])
    await wait([x])
    await c.replicate(x)
    adoption = Adoption(s, caught=pytest.fail)
    adoption.install()
    adoption.announced(a.address, "x", None, 1)
    ts, manager = s.tasks["x"], s.extensions["amm"]
    manager.workers_memory = {ws: ws.nbytes for ws in s.workers.values()}  # as `run_once` does
    assert manager._find_dropper(ts, None, set()) is s.workers[b.address]
    s.handle_worker_status_change("closing_gracefully", a.address, "test")
    assert manager._find_dropper(ts, None, set()) is s.workers[a.address]
    adoption.uninstall()


@planned_cluster([("127.0.0.1", 1)], client_kwargs={"serializers": ["dask", "msgpack"]})
async def test_answers_come_in_the_clients_serialization(c, s, a):
    assert await c.run(lambda: 1) == {a.address: 1}
    with pytest.raises(TypeError):
        await c.run(lambda: inc)
