"""What a forked process does to the memory and the files of its parent: nothing."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from dask_marsched.store import file_ranges
from dask_marsched.store.arena import Arena, segment_size
from dask_marsched.store.attachment import Attachments
from dask_marsched.store.frames import from_frames, to_frames
from dask_marsched.store.segment import create_segment, read_stamp
from dask_marsched.store.shared_memory import SharedMemory
from dask_marsched.store.spill_file import SpillFile
from tests.store.arrays import spill
from tests.store.forks import Child

MIB = 1 << 20
N = MIB // 8


@pytest.fixture
def arena():
    address = create_segment(segment_size(32 * MIB))
    made = Arena(address, 32 * MIB)
    yield made
    made.close()
    os.close(address.fd)


def put(arena, array):
    return arena.put(*to_frames(array), plain=True)


def drop(held):
    held.clear()
    gc.collect()


def test_memory_is_private_there():
    address = create_segment(segment_size(MIB))
    memory = SharedMemory(address.fd, segment_size(MIB))
    shown = np.frombuffer(memory, np.uint8)
    shown[-1] = 1

    def add():
        shown[-1] += 1
        return shown[-1]

    child = Child(add)
    assert child.call() == 2
    assert shown[-1] == 1
    child = Child(lambda: os.pwrite(address.fd, b"3", 0) and bytes(shown[:1]))
    assert child.call() == b"3", "the same file, as it is"


@pytest.mark.extended
def test_a_fork_does_not_release_its_parents_chunks(arena):
    held = {"chunk": put(arena, np.arange(N))}
    attachments = Attachments()
    handle, stamp = held["chunk"].handle, held["chunk"].stamp
    held["mapping"] = attachments.map(handle)
    Child(lambda: drop(held)).call()
    assert read_stamp(arena.fd, handle.slot) == stamp
    assert attachments.orphaned == 0
    assert not file_ranges.is_unread(arena.fd, handle.offset, 1)
    view = from_frames(handle.header, held["mapping"].frames(handle.lengths))
    assert np.array_equal(view, np.arange(N))


@pytest.mark.extended
def test_a_fork_does_not_release_its_parents_spilled_frames(tmp_path):
    file = SpillFile(str(tmp_path))
    held = [spill(file, [np.arange(N).view("u1").data])]
    Child(lambda: drop(held)).call()
    (frame,), _ = held[0].read()
    assert np.array_equal(np.frombuffer(frame, int), np.arange(N))


def test_a_fork_cannot_use_its_parents_arena_or_spill_file(arena, tmp_path):
    file = SpillFile(str(tmp_path))

    def refusals():
        found = []
        for do in (
            lambda: put(arena, np.ones(N)),
            arena.trim,
            lambda: spill(file, [memoryview(b"x")]),
        ):
            try:
                do()
            except OSError as error:
                found.append(str(error))
        return found

    found = Child(refusals).call()
    assert len(found) == 3
    assert all("forked" in message for message in found)
    assert (arena.filled, file.live) == (0, 0)


def test_a_fork_may_create_an_arena(arena):
    def publish():
        address = create_segment(segment_size(32 * MIB))
        chunk = put(Arena(address, 32 * MIB), np.arange(N))
        mapping = Attachments().map(chunk.handle)
        return from_frames(chunk.handle.header, mapping.frames(chunk.handle.lengths)).sum()

    assert Child(publish).call() == np.arange(N).sum()


def test_mappings_end_there(arena):
    chunk = put(arena, np.arange(N, dtype=float))
    held = [chunk.map()]

    def drop_one():
        address = f"{held[0].address:x}-"
        there = address in Path("/proc/self/maps").read_text()
        drop(held)
        arena.pool.close()
        return there, address in Path("/proc/self/maps").read_text()

    assert Child(drop_one).call() == (True, False)
    assert held[0].length
