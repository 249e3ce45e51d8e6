"""Objects that are published in several chunks, since part of them was made in shared memory."""

import gc

import numpy as np
import pytest

from dask_marsched.store import array_memory, scattered
from dask_marsched.store.attachment import Attachments
from dask_marsched.store.frames import from_frames, to_frames
from dask_marsched.store.segment import Handle
from tests.store.test_array_memory import MIB, arena, here, numbers, pytestmark  # noqa: F401


@pytest.fixture
def moments(arena):  # noqa: F811
    """Return a partial result of a reduction of which one array was made in shared memory."""
    arena.grant([MIB])
    total = here(numbers)
    return {"n": np.float64(3), "mean": numbers() + 1, "total": total, "name": "x"}


def read(attachments, handle, stamp):
    handle = Handle.from_message(handle.to_message())
    return from_frames(handle.header, scattered.frames_of(attachments, handle, stamp))


def assert_same(found, expected):
    assert list(found) == list(expected)
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value)


def test_frames_in_shared_memory_are_not_copied(arena, moments):  # noqa: F811
    assert scattered.array_bytes(arena, moments) == (2 * MIB, MIB)
    handle, chunks = scattered.put(arena, *to_frames(moments))
    assert arena.made_here == 1
    assert sum(n for chunk in chunks for n in chunk.handle.lengths) < 2 * MIB + 1000
    assert_same(read(Attachments(), handle, chunks[0].stamp), moments)


def test_later_writes_stay_private(arena, moments):  # noqa: F811
    handle, chunks = scattered.put(arena, *to_frames(moments))
    expected = {**moments, "total": moments["total"].copy()}
    moments["total"][:] = -1
    assert_same(read(Attachments(), handle, chunks[0].stamp), expected)


def test_all_frames_may_be_in_shared_memory(arena):  # noqa: F811
    arena.grant([MIB] * 2)
    pair = [here(numbers), here(numbers)]
    handle, chunks = scattered.put(arena, *to_frames(pair))
    assert arena.made_here == len(chunks) == 2
    assert np.array_equal(read(Attachments(), handle, chunks[0].stamp), pair)


def test_an_object_is_gone_with_any_of_its_chunks(arena, moments):  # noqa: F811
    handle, chunks = scattered.put(arena, *to_frames(moments))
    stamp = chunks[0].stamp
    chunks.pop()
    gc.collect()
    with pytest.raises(OSError, match="gone"):
        read(Attachments(), handle, stamp)


def test_an_equal_object_holds_no_private_copy(arena, moments):  # noqa: F811
    handle, chunks = scattered.put(arena, *to_frames(moments))
    new = scattered.exchanged(moments, handle, chunks)
    assert_same(new, moments)
    assert new["total"].ctypes.data == moments["total"].ctypes.data
    before = new["mean"].copy()
    moments["mean"][:] = 0
    assert np.array_equal(new["mean"], before)
    new["mean"][:] = 1
    assert np.array_equal(read(Attachments(), handle, chunks[0].stamp)["mean"], before)


def test_without_room_there_is_nothing(arena):  # noqa: F811
    array_memory.sizes_wanted()
    assert scattered.put(arena, *to_frames([np.zeros(33 * MIB, np.uint8), "x"])) is None
    assert arena.live == 0


def test_what_cannot_be_published_stays_charged(arena):  # noqa: F811
    arena.grant([MIB])
    held = {"a": here(numbers), "b": np.empty(0)}
    before = arena.held()
    assert scattered.put(arena, *to_frames(held)) is None
    assert arena.held() == before
    address = held["a"].ctypes.data
    assert arena.is_allocated_here(address, held["a"].nbytes)
