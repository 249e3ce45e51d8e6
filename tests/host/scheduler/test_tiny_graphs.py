"""Small graphs are read on the event loop, unless another graph is being read."""

import threading

import dask.array as da
import pytest
from distributed import Client
from distributed import scheduler as scheduler_module
from distributed.utils_test import inc

from dask_marsched.host.scheduler import materialization
from tests.harness import check, planned_cluster


@pytest.fixture
def readers(monkeypatch):
    """Collect the threads in which graphs are read."""
    found = []
    read = materialization.chunk_nbytes

    def chunk_nbytes(expr, dsk):
        found.append((len(dsk), threading.current_thread() is threading.main_thread()))
        return read(expr, dsk)

    monkeypatch.setattr(materialization, "chunk_nbytes", chunk_nbytes)
    return found


@planned_cluster()
async def test_single_tasks_are_read_on_the_event_loop(c, s, *workers, readers):
    assert await c.submit(inc, c.submit(inc, 1)) == 3
    assert set(readers) == {(1, True)}
    check(s)


@planned_cluster()
async def test_larger_graphs_are_read_in_the_thread(c, s, *workers, readers):
    assert await c.gather(c.map(inc, range(10))) == list(range(1, 11))
    assert readers == [(10, False)]
    check(s)


@planned_cluster()
async def test_a_tiny_graph_does_not_overtake_that_of_another_client(
    c, s, *workers, readers, monkeypatch
):
    reading, go_on = threading.Event(), threading.Event()
    read = materialization.chunk_nbytes

    def chunk_nbytes(expr, dsk):
        if threading.current_thread() is not threading.main_thread() and not reading.is_set():
            reading.set()
            assert go_on.wait(10)
        return read(expr, dsk)

    monkeypatch.setattr(materialization, "chunk_nbytes", chunk_nbytes)
    async with Client(s.address, asynchronous=True) as other:
        first = c.compute(da.ones(1000, chunks=1).sum())
        while not reading.is_set():
            await c.scheduler.identity()
        second = other.submit(inc, 1)
        while s._active_graph_updates < 2:
            await c.scheduler.identity()
        go_on.set()
        assert await first == 1000
        assert await second == 2
    assert len(readers) == 2
    assert not any(on_loop for _, on_loop in readers)
    check(s)


@planned_cluster()
async def test_a_small_graph_of_arrays_is_read_on_the_event_loop(c, s, *workers, readers):
    assert await c.compute(da.ones(100, chunks=10).sum()) == 100
    assert await c.compute(da.ones(1000, chunks=1).sum()) == 1000
    assert [on_loop for _, on_loop in readers] == [True, False]
    check(s)


def test_dask_has_its_own_function_back():
    before = scheduler_module.offload
    materialization.patch()
    assert scheduler_module.offload is not before
    materialization.unpatch()
    assert scheduler_module.offload is before
