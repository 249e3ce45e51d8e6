import gc
import os
import weakref

import numpy as np
import pytest

from dask_marsched.store.frames import from_frames, to_frames
from dask_marsched.store.mapping import ALIGNMENT, Mapping, frame_offsets
from tests.store.arrays import kinds, same

PAGE = os.sysconf("SC_PAGESIZE")


@pytest.fixture
def file(tmp_path):
    with open(tmp_path / "file", "w+b") as made:
        made.write(bytes(range(256)) * (PAGE // 64))
        made.flush()
        yield made


class Guard:
    """Something to keep alive."""


def test_writes_stay_here_and_are_noticed(file):
    mapping = Mapping(file.fileno(), PAGE, 2 * PAGE, keep=None)
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
    assert not Mapping(file.fileno(), 0, PAGE, keep=None).modified()


def test_any_view_keeps_it(file):
    guard = Guard()
    gone = weakref.ref(guard)
    (frame,) = Mapping(file.fileno(), 0, PAGE, keep=guard).frames([PAGE])
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
    mappings = [Mapping(file.fileno(), 0, PAGE, keep=None) for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before
    del mappings


def test_a_failed_mapping_raises(file):
    with pytest.raises(OSError, match="cannot map"):
        Mapping(file.fileno(), 1, PAGE, keep=None)  # not at a page


def test_frames_are_aligned():
    offsets, nbytes = frame_offsets([3, 0, 130, 1])
    assert offsets == [0, 64, 64, 256]
    assert all(o % ALIGNMENT == 0 for o in offsets)
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
