"""What a worker publishes unasked, and how long it stays so; a worker's data around it is faked."""

import asyncio
import os
from types import SimpleNamespace

import pytest
from distributed.worker_state_machine import ExecuteSuccessEvent

from dask_marsched.host.worker import publishing, retention
from dask_marsched.store.arena import Arena, segment_size
from dask_marsched.store.identities import IdentityMap
from dask_marsched.store.segment import create_segment

MIB = 1 << 20


class Held(dict):
    """The chunks in memory; `gone` is told of those that leave."""

    gone = None

    def __delitem__(self, key):
        super().__delitem__(key)
        if self.gone is not None:
            self.gone(key)


@pytest.fixture
def arena():
    address = create_segment(segment_size(4 * MIB))
    yield Arena(address, 4 * MIB)
    os.close(address.fd)


@pytest.fixture
def publisher(arena, monkeypatch):
    monkeypatch.setattr(retention, "_SETTLED", 0.0)

    async def execute(key, *, stimulus_id):
        value = {"n": b"x" * 100_000}
        return ExecuteSuccessEvent(
            stimulus_id, key=key, run_id=0, value=value, start=0, stop=1, nbytes=100_000, type=dict
        )

    fast = Held()
    store = SimpleNamespace(fast=fast, foreign=IdentityMap(), in_memory=fast.get, held=0, slow=[])
    worker = SimpleNamespace(execute=execute, state=SimpleNamespace(tasks={}))
    made = publishing.Publisher(worker, store, least=0, caught=pytest.fail)
    retainer = retention.ResultRetainer(made, arena, pytest.fail)
    made.install(arena, lambda *announced: None, retainer)
    yield made
    made.close()


async def made(publisher, *keys, stored):
    """Have tasks executed, and wait until what is published has been."""
    for key in keys:
        event = await publisher.worker.execute(key, stimulus_id="test")
        if stored:
            publisher.store.fast[key] = event.value
        del event
    looked = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.001, looked.set_result, None)
    await looked
    if publisher.retainer._draining is not None:
        await publisher.retainer._draining


def test_a_stored_result_stays_published_until_it_leaves_memory(publisher, arena):
    asyncio.run(made(publisher, "a", "b", stored=True))
    assert arena.live > 200_000
    del publisher.store.fast["a"]
    assert 100_000 < arena.live < 200_000
    del publisher.store.fast["b"]
    assert arena.live == 0


def test_a_result_released_before_its_turn_is_not_published(publisher, arena):
    asyncio.run(made(publisher, "a", "b", stored=False))
    assert (arena.published, arena.live) == (0, 0)


def test_a_result_released_during_its_copy_does_not_stay_published(publisher, arena, monkeypatch):
    copy = publisher.copy

    async def copy_of_what_goes(key, *args):
        copied = await copy(key, *args)
        del publisher.store.fast[key]
        return copied

    monkeypatch.setattr(publisher, "copy", copy_of_what_goes)
    asyncio.run(made(publisher, "a", "b", stored=True))
    assert (arena.published, arena.live) == (2, 0)


@pytest.mark.parametrize(
    ("held", "spilled", "made_here"), [(MIB, [], 1), (2 * MIB, [], 0), (MIB, ["x"], 0)]
)
def test_unshared_arrays_use_shared_memory_only_with_room(
    arena, monkeypatch, held, spilled, made_here
):
    calls = []
    monkeypatch.setattr(publishing, "make_arrays_here", lambda spare: calls.append(spare))

    async def execute(key, *, stimulus_id):
        return None

    store = SimpleNamespace(held=held, slow=spilled)
    worker = SimpleNamespace(execute=execute, state=SimpleNamespace(tasks={}))
    publisher = publishing.Publisher(worker, store, least=0, caught=pytest.fail)
    publisher.install(arena)
    asyncio.run(worker.execute("a", stimulus_id="test"))
    publisher.close()
    assert len(calls) == made_here


def test_a_key_that_is_computed_again_may_be_copied_twice_at_once(publisher):
    async def twice():
        large = publishing.COPIED_AT_ONCE + 1
        copies = (publisher.copy("a", large, lambda number: number, n) for n in (1, 2))
        return await asyncio.gather(*copies)

    assert asyncio.run(twice()) == [1, 2]
    assert not publisher._publishing


def test_copies_take_a_small_share_of_memory(publisher, arena, monkeypatch):
    monkeypatch.setattr(retention, "_TWICE_AT_LEAST", 250_000)
    asyncio.run(made(publisher, "a", "b", "c", stored=True))
    assert 200_000 < arena.live < 300_000
    publisher.store.fast.clear()
    publisher.retainer.close()
    assert publisher.retainer.twice == 0


def test_retention_takes_a_small_share_of_time(publisher, arena):
    publisher.budget.kept(1 << 40)
    asyncio.run(made(publisher, "a", "b", stored=True))
    assert arena.published == 0
    publisher.budget.worked(1e6)
    asyncio.run(made(publisher, "a", "b", stored=True))
    assert arena.published == 2


def test_released_memory_returns_before_the_next_task_ends(publisher, arena):
    arena.spare = 0

    async def emptied():
        while arena.filled:
            await asyncio.sleep(0)

    async def gone():
        await made(publisher, "a", "b", stored=True)
        del publisher.store.fast["a"]
        del publisher.store.fast["b"]
        await asyncio.wait_for(emptied(), 20)

    asyncio.run(gone())
    assert arena.live == 0
