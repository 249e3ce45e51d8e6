"""Mappings that are used again: they show what is there now, and keep nothing written."""

import gc
import os
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dask_marsched.store import mapping as mappings
from dask_marsched.store.mapping import MappingPool

LENGTH = 1 << 20


@pytest.fixture
def fd():
    made = os.memfd_create("test")
    os.ftruncate(made, 16 * LENGTH)
    yield made
    os.close(made)


@pytest.fixture
def pool():
    made = MappingPool()
    yield made
    made.close()


class Guard:
    """Something to keep alive."""


def mapped(pool, fd, offset=0, length=LENGTH, keep=None):
    return np.asarray(pool.map(fd, offset, length, keep))


def test_a_kept_mapping_shows_the_current_content(pool, fd):
    view = mapped(pool, fd)
    assert view.sum() == 0
    address = view.ctypes.data
    del view
    assert (len(pool), pool.nbytes) == (1, LENGTH)
    os.pwrite(fd, b"\x01" * LENGTH, 0)
    view = mapped(pool, fd)
    assert view.ctypes.data == address
    assert len(pool) == 0
    assert view.sum() == LENGTH


def test_a_chunk_in_use_is_mapped_beside(pool, fd):
    first, second = mapped(pool, fd), mapped(pool, fd)
    assert first.ctypes.data != second.ctypes.data
    first[0] = 7
    assert second[0] == 0
    del first, second
    assert len(pool) == 1  # one was written to


def test_a_modified_mapping_is_not_reused(pool, fd):
    view = mapped(pool, fd)
    view[-1] = 1
    del view
    assert len(pool) == 0
    assert mapped(pool, fd)[-1] == 0


def test_also_behind_a_shorter_chunk(pool, fd):
    mapped(pool, fd).sum()
    assert len(pool) == 1
    view = mapped(pool, fd, length=LENGTH // 2)
    assert view.size == LENGTH // 2
    view[0] = 1
    del view
    assert len(pool) == 0
    assert mapped(pool, fd)[0] == 0


def test_a_shorter_mapping_gives_way_to_a_longer_one(pool, fd):
    mapped(pool, fd, length=LENGTH // 2).sum()
    view = mapped(pool, fd)
    assert view.size == LENGTH
    view.sum()
    del view
    assert pool.nbytes == LENGTH


def test_a_kept_mapping_does_not_keep_the_chunk(pool, fd):
    guard = Guard()
    gone = weakref.ref(guard)
    view = mapped(pool, fd, keep=guard)
    part = view[5:]
    del guard, view
    assert gone() is not None
    del part
    gc.collect()
    assert gone() is None


def test_small_ones_do_not_wait_and_many_neither(pool, fd, monkeypatch):
    mapped(pool, fd, length=4096).sum()
    assert len(pool) == 0
    monkeypatch.setattr(mappings, "_MOST_KEPT", 3)
    views = [mapped(pool, fd, n * LENGTH) for n in range(5)]
    views.clear()
    assert len(pool) == 3


def test_a_closed_pool_keeps_nothing(pool, fd):
    view = mapped(pool, fd)
    mapped(pool, fd, LENGTH).sum()
    pool.close()
    del view
    assert len(pool) == 0


def test_many_threads(pool, fd):
    def use(n):
        for i in range(50):
            view = mapped(pool, fd, (i + n) % 4 * LENGTH)
            assert view[0] == 0
            if i % 7 == n:
                view[0] = 1
            del view

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(use, range(4)))
    assert len(pool) <= 4
    for n in range(4):
        assert mapped(pool, fd, n * LENGTH)[0] == 0
