"""Private mappings show the file, keep writes to themselves, and are reused unless modified."""

import gc
import os
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dask_marsched.store import mapping as mappings
from dask_marsched.store.frames import from_frames, to_frames
from dask_marsched.store.mapping import ALIGNMENT, MappingPool, frame_offsets
from dask_marsched.store.releases import Releases
from tests.store.arrays import kinds, same

PAGE = os.sysconf("SC_PAGESIZE")
LENGTH = 1 << 20


@pytest.fixture
def file(tmp_path):
    with open(tmp_path / "file", "w+b") as made:
        made.write(bytes(range(256)) * (PAGE // 64))
        made.flush()
        yield made


def map_part(file, offset, length, keep=None):
    pool = MappingPool(Releases())
    pool.close()
    return pool.map(file.fileno(), offset, length, keep)


class Guard:
    """Something to keep alive."""


def test_writes_stay_here_and_are_noticed(file):
    mapping = map_part(file, PAGE, 2 * PAGE)
    (view,) = mapping.frames([2 * PAGE])
    assert view[0] == 0
    assert view[1] == 1
    assert not mapping.modified()
    view[PAGE + 3] = 99
    assert mapping.modified()
    assert view[PAGE + 3] == 99
    file.seek(2 * PAGE + 3)
    assert file.read(1) == b"\x03"


def test_a_mapping_that_was_not_read_is_not_modified(file):
    assert not map_part(file, 0, PAGE).modified()


@pytest.mark.extended
def test_any_view_keeps_it(file):
    guard = Guard()
    gone = weakref.ref(guard)
    (frame,) = map_part(file, 0, PAGE, guard).frames([PAGE])
    del guard
    array = np.frombuffer(frame, np.float64)[3:].reshape(-1, 1)[::2]
    del frame
    gc.collect()
    assert gone() is not None
    assert array.nbytes
    array.sum()
    del array
    gc.collect()
    assert gone() is None


def test_a_mapping_keeps_no_descriptor(file):
    before = len(os.listdir("/proc/self/fd"))
    mappings = [map_part(file, 0, PAGE) for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before
    del mappings


def test_a_failed_mapping_raises(file):
    with pytest.raises(OSError, match="cannot map"):
        map_part(file, 1, PAGE)  # not at a page


def test_frames_are_aligned():
    lengths = [3, 0, 130, 1]
    offsets, nbytes = frame_offsets(lengths)
    assert offsets == [0, 3, 64, 256]
    assert all(o % ALIGNMENT == 0 for o, n in zip(offsets, lengths, strict=True) if n)
    assert nbytes == 257
    assert frame_offsets([]) == ([], 0)


@pytest.mark.parametrize("kind", kinds())
def test_objects_survive_as_frames(kind):
    value = kinds()[kind]
    header, frames = to_frames(value)
    assert all(f.ndim == 1 and f.format == "B" for f in frames)
    copies = [memoryview(bytearray(f)) for f in frames]
    assert same(from_frames(header, copies), value)
    assert same(from_frames(header, copies), value), "a header can be used twice"


@pytest.fixture
def fd():
    made = os.memfd_create("test")
    os.ftruncate(made, 16 * LENGTH)
    yield made
    os.close(made)


@pytest.fixture
def pool():
    made = MappingPool(Releases())
    yield made
    made.close()


def mapped(pool, fd, offset=0, length=LENGTH, keep=None):
    return np.asarray(pool.map(fd, offset, length, keep))


def test_a_kept_mapping_shows_the_current_content(pool, fd):
    view = mapped(pool, fd)
    assert view.sum() == 0
    address = view.ctypes.data
    del view
    assert (len(pool._waiting), pool.nbytes) == (1, LENGTH)
    os.pwrite(fd, b"\x01" * LENGTH, 0)
    view = mapped(pool, fd)
    assert view.ctypes.data == address
    assert len(pool._waiting) == 0
    assert view.sum() == LENGTH


def test_a_chunk_in_use_is_mapped_beside(pool, fd):
    first, second = mapped(pool, fd), mapped(pool, fd)
    assert first.ctypes.data != second.ctypes.data
    first[0] = 7
    assert second[0] == 0
    del first, second
    assert len(pool._waiting) == 1  # one was written to


def test_a_modified_mapping_is_not_reused(pool, fd):
    view = mapped(pool, fd)
    view[-1] = 1
    del view
    assert len(pool._waiting) == 0
    assert mapped(pool, fd)[-1] == 0


def test_also_behind_a_shorter_chunk(pool, fd):
    mapped(pool, fd).sum()
    assert len(pool._waiting) == 1
    view = mapped(pool, fd, length=LENGTH // 2)
    assert view.size == LENGTH // 2
    view[0] = 1
    del view
    assert len(pool._waiting) == 0
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
    assert len(pool._waiting) == 0
    monkeypatch.setattr(mappings, "_MOST_KEPT", 3)
    views = [mapped(pool, fd, n * LENGTH) for n in range(5)]
    views.clear()
    assert len(pool._waiting) == 3


def test_a_closed_pool_keeps_nothing(pool, fd):
    view = mapped(pool, fd)
    mapped(pool, fd, LENGTH).sum()
    pool.close()
    del view
    assert len(pool._waiting) == 0


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
    assert len(pool._waiting) <= 4
    for n in range(4):
        assert mapped(pool, fd, n * LENGTH)[0] == 0
